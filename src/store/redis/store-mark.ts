import { newToken } from '../../lib/random.ts';
import { MARK_LASTS_MS, type Mode, UnreadableMark, type UsedMark } from '../contract.ts';
import { type Commands, notReplicated, scripts, wordOf } from './commands.ts';

/** The mark of a store in Redis (see `StoreMark`), and who has used the store lately. */
export class RedisStoreMark {
  readonly #commands: Commands;
  readonly #key: string;

  /** @param key the mark's name. The names beside it begin with it. */
  constructor(commands: Commands, key: string) {
    this.#commands = commands;
    this.#key = key;
  }

  async read(mode: Mode): Promise<UsedMark | undefined> {
    const { client } = this.#commands;
    const [key, , other] = this.#keys(mode);
    const [mark, isUsed] = await this.#commands.call(() =>
      Promise.all([client.get(key), client.exists(other)]),
    );
    return mark === null ? undefined : markOf(`${mark} ${isUsed}`);
  }

  async write(mode: Mode): Promise<UsedMark> {
    const args = [newToken().toString('hex'), MARK_LASTS_MS];
    const written = this.#commands.write(scripts.mark, this.#keys(mode), args);
    const mark = markOf(wordOf(await written.reply));
    if (written.replicated && !(await written.replicated)) throw notReplicated('mark');
    return mark;
  }

  /** The keys of mark.lua. */
  #keys(mode: Mode): [mark: string, own: string, other: string] {
    const key = this.#key;
    const other = mode === 'protect' ? 'observe' : 'protect';
    return [key, `${key}:${mode}`, `${key}:${other}`];
  }
}

/** Reads the result of mark.lua. @throws {UnreadableMark} */
function markOf(text: string): UsedMark {
  const [, id, count, other] = /^([0-9a-f]+) (\d+) ([01])$/.exec(text) ?? [];
  if (id === undefined) throw new UnreadableMark();
  return { id, count: Number(count), otherMode: other === '1' };
}
