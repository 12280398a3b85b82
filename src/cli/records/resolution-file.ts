import { isUtf8 } from 'node:buffer';
import * as z from 'zod';
import type { RecordView, ResolveRequest } from '../../doubts/record-view.ts';
import { DEFAULT_LAYERS, LAYER, LAYER_RULE, recordIdOf } from '../../ledger/record-id.ts';
import { hasDuplicateMember } from '../../requests/duplicate-member.ts';
import { Exit } from '../arguments.ts';
import { readNamed } from './open-desk.ts';

/** How one key is to be resolved. */
export interface FileLine {
  /** What people read: merchant and key, or the record id. */
  name: string;
  request: Omit<ResolveRequest, 'by' | 'reason'>;
}

/** Most mistakes in one message. */
const MAX_MISTAKES = 20;

/** Members that `records list --lines` prints. A line may have them, and they are not used. */
const listed = {
  state: z.string(),
  operation: z.string(),
  requestId: z.string(),
  fingerprint: z.string(),
  gatewayId: z.string(),
  encryptionKeyId: z.string(),
  createdAt: z.string(),
  changedAt: z.string(),
  wasInDoubt: z.boolean(),
  ownerGone: z.boolean(),
  cause: z.string(),
  sentAgain: z.boolean(),
} satisfies { [Name in keyof RecordView]?: z.ZodType };

const lineSchema = z
  .strictObject({
    ...z.object(listed).partial().shape,
    // Whole, so that no key is in two lines.
    recordId: z
      .string()
      .regex(/^[0-9a-f]{48}$/, 'must have all 48 digits')
      .optional(),
    merchant: z.string().optional(),
    key: z.string().optional(),
    layer: z.string().regex(LAYER, LAYER_RULE).optional(),
    as: z.enum(['completed', 'released']),
    status: z.number().optional(),
    headers: z.array(z.string()).optional(),
    /** Text; it is stored in UTF-8. */
    body: z.string().optional(),
    // The file is older than this command: meanwhile the key may have been released and executed again.
    execution: z.string({
      error: 'must be the execution that was looked up, as records list --lines prints it',
    }),
  })
  .refine(
    ({ recordId, merchant, key }) =>
      merchant === undefined && key === undefined
        ? recordId !== undefined
        : merchant !== undefined && key !== undefined,
    { message: 'must have `recordId`, or merchant and key' },
  );

/**
 * @param layer of lines that name none
 * @throws {Exit} 64 with the mistakes of the file, before anything is written
 */
export function readResolutions(path: string, layer: string): FileLine[] {
  const lines: FileLine[] = [];
  const mistakes: string[] = [];
  const firstLines = new Map<string, number>();
  const bytes = readNamed(path, 'from');
  // Otherwise a merchant would get another body than the one that was written.
  if (!isUtf8(bytes)) throw new Exit(`${path} is not UTF-8`, 64);
  // Some editors and shells begin a file with a byte order mark.
  const content = bytes.toString().replace(/^\uFEFF/, '');
  for (const [i, text] of content.split('\n').entries()) {
    if (text.trim() === '') continue;
    const mistake = (what: string) => mistakes.push(`${path}: line ${i + 1}: ${what}`);
    const json = jsonOf(text);
    const read = lineSchema.safeParse(json);
    if (json === undefined) mistake('is not JSON');
    // Such as two `as`: the last one would count, and release what the books have.
    else if (hasDuplicateMember(text)) mistake('has a member twice');
    else if ((json as Partial<RecordView> | null)?.state === 'unreadable')
      mistake('its record cannot be read, so it cannot be resolved: remove the line');
    else if (!read.success) {
      const [issue] = read.error.issues;
      const at = issue?.path.join('.');
      mistake(`${at ? `${at}: ` : ''}${issue?.message}`);
    } else {
      const line = lineOf(read.data, layer);
      if (!line) {
        mistake('`recordId` is not that of merchant, key and layer');
        continue;
      }
      const first = firstLines.get(line.request.recordId);
      if (first !== undefined) mistake(`is the same key as line ${first}`);
      else firstLines.set(line.request.recordId, i + 1);
      lines.push(line);
    }
  }
  if (lines.length + mistakes.length === 0) mistakes.push(`${path} has no lines: nothing is to be resolved`);
  if (mistakes.length > MAX_MISTAKES)
    mistakes.splice(MAX_MISTAKES, mistakes.length, `and ${mistakes.length - MAX_MISTAKES} more`);
  if (mistakes.length > 0) throw new Exit(mistakes.join('\n'), 64);
  return lines;
}

/** Reads a line, unless it has the record id of another key. A listing, which names no layers, may have records of several ones. */
function lineOf(line: z.infer<typeof lineSchema>, defaultLayer: string): FileLine | undefined {
  const { layer = defaultLayer, merchant = '', key = '', as, status, headers, body, execution } = line;
  const layers = line.layer === undefined ? [layer, ...Object.values(DEFAULT_LAYERS)] : [layer];
  const recordIds: string[] = layers.map((name) => recordIdOf(name, merchant, key));
  if (line.recordId !== undefined && line.key !== undefined && !recordIds.includes(line.recordId))
    return undefined;
  const recordId = line.recordId ?? (recordIds[0] as string);
  return {
    name: line.key === undefined ? recordId : `${merchant} ${key}`,
    request: {
      ...{ recordId, as, status, headers, execution },
      body: body === undefined ? undefined : Buffer.from(body).toString('base64'),
    },
  };
}

/** Parses a text, unless it is no JSON, which is a mistake of its line. */
function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
