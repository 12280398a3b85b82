import type { RecordView } from '../../src/doubts/record-view.ts';
import type { RecordId } from '../../src/lib/brands.ts';
import { responseOf } from './backend.ts';
import type { Gateway } from './gateway.ts';
import { KEYS } from './keys.ts';
import type { Layer } from './layer.ts';
import type { OperatorPlan } from './plan.ts';
import type { Timeline } from './timeline.ts';

/** What operators have to do with. */
export interface Office {
  /** Whose records they see. */
  layer: Layer;
  timeline: Timeline;
  /** Whether they fail to look whether a request is still under way, or its gateway frozen. */
  areCareless: boolean;
  /** Whether they resolve the execution that is there, and not the one that they have looked at: a mistake. */
  anyExecution: boolean | undefined;
  /** Whether a request with this key may still be executed. */
  mayBeSent(key: string): boolean | undefined;
  say(what: string): void;
  event(name: string): void;
}

/**
 * An operator looks at the keys in doubt and at the backend's books, tells the truth of that moment, and writes it now or later, once or
 * twice.
 */
export async function operate(office: Office, plan: OperatorPlan): Promise<void> {
  const { layer, timeline } = office;
  const { checker } = layer;
  const [key, recordId] = [KEYS[plan.key] as string, layer.recordIds[plan.key] as RecordId];
  const looking = layer.gatewayAt(plan.gateway);
  const view = looking && (await viewOf(looking, recordId));
  if (!view || !('execution' in view)) return;
  const isUnsure = office.mayBeSent(key);
  const execution = checker.executionOf(recordId, timeline.nowMs);
  if (!execution && isUnsure && !office.areCareless) return;
  if (!execution && isUnsure) layer.excuse(key, 'an operator released it while its request was under way');
  const response = execution && !plan.isBrief ? responseOf(execution) : undefined;
  const question = {
    ...({ recordId, as: execution ? 'completed' : 'released' } as const),
    ...{ by: 'ada', reason: 'the books show it' },
    ...(response ? { status: response.status, body: response.body.toString('base64') } : {}),
  };
  for (let time = 0; time < plan.times; time++) {
    if (plan.actsAfterMs > 0) await new Promise<void>((resolve) => timeline.after(plan.actsAfterMs, resolve));
    const acting = layer.gatewayAt(plan.gateway + time);
    if (!acting) continue;
    const now = office.anyExecution ? await viewOf(acting, recordId) : view;
    const named = now && 'execution' in now ? now.execution : view.execution;
    office.say(`an operator says ${question.as} ${execution?.result ?? ''}`);
    const completion = response && `${response.status} ${response.body}`;
    const takeBack = checker.resolving(recordId, question.as, completion, timeline.nowMs);
    const answer = await acting.desk.resolve({ ...question, execution: named });
    const told = answer.kind === 'refused' ? answer.why : 'done';
    office.say(`an operator is told ${told}`);
    office.event(`operator told ${told}`);
    if (told !== 'done' && told !== 'unavailable') takeBack();
  }
}

async function viewOf({ desk }: Gateway, recordId: RecordId): Promise<RecordView | undefined> {
  const answer = await desk.list({ inDoubt: true, limit: 100 });
  if (answer.kind === 'refused') return undefined;
  return answer.value.records.find((record) => record.recordId === recordId);
}
