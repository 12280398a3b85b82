import type { IncomingHttpHeaders, ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { httpBackend } from '../../../support/backend.ts';
import { until } from '../../../support/until.ts';

/** A span that has arrived, with its attributes as an object. */
export interface CollectedSpan {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  /** 1: internal, 2: server, 3: client. */
  kind: number;
  /** Nanoseconds since 1970. */
  startNs: bigint;
  endNs: bigint;
  attributes: Record<string, string | number | boolean>;
  /** 2: error. */
  status: number;
  resource: Record<string, string | number | boolean>;
}

/** A collector for OTLP over HTTP, which reads what arrives. It is closed after the test. */
export interface Collector {
  /** Without a path. */
  url: string;
  spans: CollectedSpan[];
  /** Path and headers of each request, in their order. */
  requests: { path: string; headers: IncomingHttpHeaders }[];
  /** The bytes of all requests. */
  text: string;
  /** How the collector answers. Default: 200. */
  answer(res: ServerResponse): void;
  /** The server span of a request, and its steps in the order of their beginning; waits until both have arrived. */
  requestSpans(requestId: string): Promise<{ server: CollectedSpan; steps: CollectedSpan[] }>;
}

interface Attribute {
  key: string;
  value: { stringValue?: string; intValue?: number | string; boolValue?: boolean; doubleValue?: number };
}

/** A span as OTLP's JSON has it. */
interface SentSpan extends Pick<CollectedSpan, 'traceId' | 'spanId' | 'parentSpanId' | 'name' | 'kind'> {
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: Attribute[];
  status: { code: number };
}

interface Sent {
  resourceSpans: { resource: { attributes: Attribute[] }; scopeSpans: { spans: SentSpan[] }[] }[];
}

const objectOf = (attributes: Attribute[]) =>
  Object.fromEntries(
    attributes.map(({ key, value: { stringValue, intValue, boolValue, doubleValue } }) => [
      key,
      stringValue ?? boolValue ?? Number(intValue ?? doubleValue),
    ]),
  );

function spansIn(body: string): CollectedSpan[] {
  const { resourceSpans } = JSON.parse(body) as Sent;
  return resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans
      .flatMap(({ spans }) => spans)
      .map(({ startTimeUnixNano, endTimeUnixNano, attributes, status, ...span }) => ({
        ...span,
        startNs: BigInt(startTimeUnixNano),
        endNs: BigInt(endTimeUnixNano),
        attributes: objectOf(attributes),
        status: status.code,
        resource: objectOf(resource.attributes),
      })),
  );
}

export async function startCollector(): Promise<Collector> {
  const collector: Collector = {
    url: '',
    spans: [],
    requests: [],
    text: '',
    answer: (res) => res.writeHead(200, { 'Content-Type': 'application/json' }).end('{}'),
    requestSpans: async (requestId) => {
      const server = await until(() =>
        collector.spans.find(({ attributes }) => attributes['oncegate.request_id'] === requestId),
      );
      // A span is sent when it ends, and the steps end before the request.
      const steps = collector.spans
        .filter(({ parentSpanId }) => parentSpanId === server.spanId)
        .sort((a, b) => Number(a.startNs - b.startNs));
      return { server, steps };
    },
  };
  collector.url = await httpBackend(async (req, res) => {
    const body = await text(req);
    collector.requests.push({ path: req.url ?? '', headers: req.headers });
    collector.text += body;
    collector.spans.push(...spansIn(body));
    collector.answer(res);
  });
  return collector;
}
