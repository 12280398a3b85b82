import type { RecordId, Token } from '../../src/lib/brands.ts';
import type { Create, Replace, Reply } from '../../src/store/register.ts';
import { type Revision, UnreadableRecord } from '../../src/store/types.ts';
import { MemoryRegister } from '../support/memory-register.ts';

/** A register that does something else than what it is asked to replace. `there`: the revision that it holds. */
const replacing = (change: (write: Replace, there: Revision | undefined) => Replace) =>
  class extends MemoryRegister {
    override async replace(id: RecordId, write: Replace): Promise<Reply> {
      return await super.replace(id, change(write, (await super.read(id))?.record.revision));
    }
  };

const isRefused = ({ revision }: Replace, there: Revision | undefined) =>
  there && revision ? !there.equals(revision) : there !== revision;

/** The register leaves a part of each write out, or of those that it refuses. */
const without = (name: keyof Replace, always = true) =>
  replacing((write, there) => (always || isRefused(write, there) ? { ...write, [name]: undefined } : write));

/** Registers with one mistake each. The contract notices every one of them. */
export const mistakes: [what: string, register: typeof MemoryRegister][] = [
  ['replaces whatever is there', replacing((write, revision) => ({ ...write, revision }))],
  [
    'does not know its own write',
    replacing((write, there) => {
      const { record } = write;
      return record && there?.equals(record.revision) ? { ...write, record: undefined } : write;
    }),
  ],
  [
    'lets a record live anew with each write',
    replacing((write) => (write.expiresInMs === 'unchanged' ? { ...write, expiresInMs: 1e9 } : write)),
  ],
  [
    'keeps the lifetime of what it replaces',
    replacing((write, there) => (there ? { ...write, expiresInMs: 'unchanged' } : write)),
  ],
  ['does not look at the lease', without('unlessLeased')],
  ['takes resolutions while it is closed', without('unlessClosed')],
  ['does not end leases', without('endLeaseOf')],
  ['ends a lease only with the write', without('endLeaseOf', false)],
  ['does not void tokens', without('voidToken')],
  ['voids a token only with the write', without('voidToken', false)],
  ['keeps no trail', without('audit')],
  ['does not count resolutions', without('counted')],
  [
    'creates over what is there',
    class extends MemoryRegister {
      override async create(id: RecordId, write: Create): Promise<Reply> {
        const there = (await super.read(id))?.record;
        if (there?.revision.equals(write.record.revision) === false)
          await super.replace(id, { ...write, kind: 'replace', revision: there.revision, operation: '' });
        return await super.create(id, write);
      }
    },
  ],
  [
    'takes what it cannot read for nothing',
    class extends MemoryRegister {
      override async read(id: RecordId) {
        return await super.read(id).catch((error) => {
          if (!(error instanceof UnreadableRecord)) throw error;
          return undefined;
        });
      }
    },
  ],
  [
    'lets anybody renew',
    class extends MemoryRegister {
      override async renew(id: RecordId, token: Token, leaseMs: number) {
        const renewed = await super.renew(id, token, leaseMs);
        return renewed === 'lost' ? 'kept' : renewed;
      }
    },
  ],
  [
    'finds ids by the start of their digits only',
    class extends MemoryRegister {
      override async idsOf(digits: string) {
        return await super.idsOf(digits.slice(0, 4));
      }
    },
  ],
  [
    'lists what is completed as open',
    class extends MemoryRegister {
      override async list(query: Parameters<MemoryRegister['list']>[0]) {
        return await super.list({ ...query, open: false });
      }
    },
  ],
  [
    'does not count what a dead owner left',
    class extends MemoryRegister {
      override async countOpen(options: Parameters<MemoryRegister['countOpen']>[0]) {
        return { ...(await super.countOpen(options)), old: [] };
      }
    },
  ],
];
