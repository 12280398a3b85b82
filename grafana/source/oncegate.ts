import { gateways } from './gateways.ts';
import { idempotency } from './idempotency.ts';
import { latency } from './latency.ts';
import { layOut } from './layout.ts';
import { load } from './load.ts';
import type { Dashboard } from './model.ts';
import { dataSource } from './panels.ts';
import { processes } from './processes.ts';
import { promise } from './promise.ts';
import { store } from './store.ts';
import { traffic } from './traffic.ts';
import { variables } from './variables.ts';

const alerts = {
  name: 'Alerts',
  datasource: dataSource,
  enable: true,
  hide: false,
  iconColor: 'red',
  expr: 'ALERTS{alertname=~"Oncegate.*", alertstate="firing", severity!="info"}',
  step: '60s',
  titleFormat: '{{alertname}}',
  tagKeys: 'severity',
  textFormat: '{{instance}} {{operation}}',
  useValueForTime: false,
};

/** The whole dashboard. */
export const oncegate: Dashboard = {
  id: null,
  uid: 'oncegate',
  title: 'oncegate',
  description:
    'One merchant, one idempotency key, one execution: is the promise kept, and what endangers it?',
  tags: ['oncegate'],
  schemaVersion: 39,
  version: 1,
  editable: false,
  graphTooltip: 1,
  timezone: 'browser',
  refresh: '30s',
  time: { from: 'now-6h', to: 'now' },
  timepicker: {},
  fiscalYearStartMonth: 0,
  weekStart: '',
  liveNow: false,
  links: [],
  templating: { list: variables },
  annotations: { list: [alerts] },
  panels: layOut([promise, gateways, traffic, idempotency, latency, store, load, processes]),
};
