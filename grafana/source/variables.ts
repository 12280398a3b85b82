import type { Variable } from './model.ts';
import { dataSource } from './panels.ts';

/** The variables at the top of the dashboard. */
export const variables: Variable[] = [
  {
    name: 'datasource',
    label: 'Data source',
    type: 'datasource',
    query: 'prometheus',
    regex: '',
    current: {},
    options: [],
    hide: 0,
    includeAll: false,
    multi: false,
    refresh: 1,
    skipUrlSync: false,
  },
  chosenFrom('job', 'Job', 'label_values(oncegate_in_flight, job)'),
  chosenFrom('instance', 'Instance', 'label_values(oncegate_in_flight{job=~"$job"}, instance)'),
  chosenFrom('operation', 'Operation', 'label_values(oncegate_requests_total{job=~"$job"}, operation)'),
];

/** One, several or all values of a label. "All" is the list of the values, not `.*`: `up` also has the jobs of others. */
function chosenFrom(name: string, label: string, query: string): Variable {
  return {
    name,
    label,
    type: 'query',
    datasource: dataSource,
    definition: query,
    query: { qryType: 1, query, refId: 'PrometheusVariableQueryEditor-VariableQuery' },
    regex: '',
    current: { selected: true, text: ['All'], value: ['$__all'] },
    options: [],
    hide: 0,
    includeAll: true,
    multi: true,
    // Refreshed with the time range: a gateway that is down still has its past.
    refresh: 2,
    skipUrlSync: false,
    sort: 1,
  };
}
