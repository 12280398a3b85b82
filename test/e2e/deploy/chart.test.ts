import { execFile, execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Validator } from '@cfworker/json-schema';
import { beforeAll, describe, expect, it } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { temporaryFolder } from '../../support/config.ts';
import { ROOT, read } from '../../support/repository.ts';

const FOLDER = join(ROOT, 'deploy/helm');

/** Parsed YAML, whose form the test checks. */
type Parsed = ReturnType<typeof JSON.parse>;

const CHART: Parsed = parse(read('deploy/helm/Chart.yaml'));
const VALUES: Parsed = parse(read('deploy/helm/values.yaml'));
const validator = new Validator(JSON.parse(read('deploy/helm/values.schema.json')), '7', false);

const renderer = join(temporaryFolder(), 'render');

beforeAll(async () => {
  // Debian's packages of Go's libraries are a GOPATH, and have no modules.
  const env = { ...process.env, GO111MODULE: 'off', GOPATH: '/usr/share/gocode' };
  const args = ['build', '-o', renderer, join(ROOT, 'test/e2e/deploy/render.go')];
  await promisify(execFile)('go', args, { env }).catch((error) => {
    throw new Error(`Go or its libraries are missing; npm run test:all -- --install installs them: ${error}`);
  });
}, 300_000);

/** The chart's objects, as `helm template NAME deploy/helm` with these values would print them. */
function rendered(values: object = {}, release = 'oncegate'): Parsed[] {
  const all = { ...VALUES, ...values };
  expect(validator.validate(all).errors).toEqual([]);
  const chart = {
    Values: all,
    Chart: { Name: CHART.name, Version: CHART.version, AppVersion: CHART.appVersion },
    Release: { Name: release, Namespace: 'payments', Service: 'Helm' },
  };
  const text = execFileSync(renderer, [FOLDER], { input: JSON.stringify(chart), encoding: 'utf8' });
  return parseAllDocuments(text)
    .map((document) => {
      expect(document.errors).toEqual([]);
      return document.toJS();
    })
    .filter((object) => object !== null);
}

const built = (overlay: string): Parsed[] =>
  parseAllDocuments(
    execFileSync('kubectl', ['kustomize', join(ROOT, 'deploy/kubernetes', overlay)], { encoding: 'utf8' }),
  ).map((document) => document.toJS());

const find = (objects: Parsed[], kind: string, name = 'oncegate'): Parsed =>
  objects.find((object) => object.kind === kind && object.metadata.name === name);

/** What a chart has and an overlay has not: the names of its release, and how it rolls out a changed configuration. */
const ONLY_IN_CHARTS = [
  ...['app.kubernetes.io/instance', 'app.kubernetes.io/managed-by', 'helm.sh/chart'],
  ...['checksum/config', 'helm.sh/resource-policy'],
];

/** An object without that, and with its configuration parsed. */
function comparable({ kind, metadata, data, ...rest }: Parsed, labels: object | undefined): object {
  const text = JSON.stringify({ kind, name: metadata.name, labels, ...rest });
  const isEmpty = (value: unknown) => typeof value === 'object' && value && Object.keys(value).length === 0;
  return JSON.parse(
    // kustomize adds a digest to the name of the generated configuration.
    text.replaceAll(/"oncegate-(?!admin)[a-z0-9]{10}"/g, '"oncegate"'),
    (name, value) =>
      ONLY_IN_CHARTS.includes(name) || (name === 'annotations' && isEmpty(value)) ? undefined : value,
  );
}

describe.each(['redis', 'postgres', 'sqlite'])('the chart with %s', (store) => {
  it('has the objects of the overlay of kustomize', () => {
    const byName = (objects: Parsed[]) =>
      new Map(
        objects.map((object) => [
          `${object.kind} ${object.metadata.name.replace(/-[a-z0-9]{10}$/, '')}`,
          object,
        ]),
      );
    const [charts, overlays] = [byName(rendered({ store })), byName(built(store))];
    expect([...charts.keys()].sort()).toEqual([...overlays.keys()].sort());
    for (const [name, overlay] of overlays) {
      const chart = charts.get(name);
      // All objects of a release have its labels.
      const labels = { 'app.kubernetes.io/name': 'oncegate', ...overlay.metadata.labels };
      expect(comparable(chart, chart.metadata.labels), name).toEqual(comparable(overlay, labels));
      if (name === 'ConfigMap oncegate')
        expect(parse(chart.data['gateway.yaml'])).toEqual(parse(overlay.data['gateway.yaml']));
      else expect(overlay).not.toHaveProperty('data');
    }
  });
});

describe('the chart', () => {
  it('has the name of its release in every object, so that two can be in one namespace', () => {
    const redis = rendered({}, 'second');
    const sqlite = rendered({ store: 'sqlite' }, 'second');
    for (const object of [...redis, ...sqlite]) {
      expect(object.metadata.name).toMatch(/^second(?:-admin)?$/);
      for (const [, instance] of JSON.stringify(object).matchAll(/kubernetes\.io\/instance":"(\w+)"/g))
        expect(instance).toBe('second');
    }
    expect(find(redis, 'HorizontalPodAutoscaler', 'second').spec.scaleTargetRef.name).toBe('second');
    expect(find(sqlite, 'Deployment', 'second').spec.template.spec.volumes).toEqual([
      { name: 'data', persistentVolumeClaim: { claimName: 'second' } },
      { name: 'config', configMap: { name: 'second' } },
    ]);
  });

  it('follows the options of the gateway, and starts new pods for them', () => {
    const config = {
      admin: { port: 9101, console: false },
      listen: { port: 9100 },
      auth: { keys: { source: 'file', path: '/keys/keys.yaml' } },
      shutdown: { delayMs: 0 },
    };
    const objects = rendered({ config });
    const written = parse(find(objects, 'ConfigMap').data['gateway.yaml']);
    expect(written).toMatchObject(config);
    expect(written).toMatchObject({ admin: { host: '0.0.0.0' }, store: { kind: 'redis' } });
    const { template } = find(objects, 'Deployment').spec;
    expect(template.spec.containers[0].ports.map(({ containerPort }: Parsed) => containerPort)).toEqual([
      9100, 9101,
    ]);
    expect(find(objects, 'Service', 'oncegate-admin').spec.ports[0].port).toBe(9101);
    const digest = ({ spec }: Parsed) => spec.template.metadata.annotations['checksum/config'];
    expect(digest(find(objects, 'Deployment'))).toMatch(/^[0-9a-f]{64}$/);
    expect(digest(find(objects, 'Deployment'))).not.toBe(digest(find(rendered(), 'Deployment')));
  });

  it('takes what a cluster needs beside it', () => {
    const more = {
      image: {
        repository: 'registry.internal/oncegate',
        tag: '9',
        pullPolicy: 'Always',
        pullSecrets: [{ name: 'a' }],
      },
      podAnnotations: { note: 'x' },
      nodeSelector: { disk: 'ssd' },
      tolerations: [{ key: 'payments', operator: 'Exists' }],
      affinity: { nodeAffinity: {} },
      extraVolumes: [{ name: 'keys', secret: { secretName: 'keys' } }],
      extraVolumeMounts: [{ name: 'keys', mountPath: '/keys', readOnly: true }],
    };
    const { template } = find(rendered(more), 'Deployment').spec;
    const { spec } = template;
    expect(template.metadata.annotations).toMatchObject(more.podAnnotations);
    const { nodeSelector, tolerations, affinity } = more;
    expect(spec).toMatchObject({ nodeSelector, tolerations, affinity, imagePullSecrets: [{ name: 'a' }] });
    expect(spec.containers[0]).toMatchObject({
      image: 'registry.internal/oncegate:9',
      imagePullPolicy: 'Always',
    });
    expect(spec.volumes).toContainEqual(more.extraVolumes[0]);
    expect(spec.containers[0].volumeMounts).toContainEqual(more.extraVolumeMounts[0]);
    const volume = { size: '1Ti', storageClassName: 'local' };
    const claim = find(rendered({ store: 'sqlite', volume }), 'PersistentVolumeClaim');
    expect(claim.spec).toMatchObject({
      storageClassName: 'local',
      resources: { requests: { storage: '1Ti' } },
    });
    expect(claim.metadata.annotations).toEqual({ 'helm.sh/resource-policy': 'keep' });
    const off = {
      networkPolicy: { ...VALUES.networkPolicy, enabled: false },
      serviceMonitor: { enabled: false },
    };
    expect(rendered(off).map(({ kind }) => kind)).not.toContain('NetworkPolicy');
    expect(rendered(off).map(({ kind }) => kind)).not.toContain('ServiceMonitor');
  });

  it('refuses values that it does not have', () => {
    expect(validator.validate({ ...VALUES, store: 'mysql' }).valid).toBe(false);
    expect(validator.validate({ ...VALUES, replicas: 3 }).valid).toBe(false);
    expect(CHART).toMatchObject({
      apiVersion: 'v2',
      name: 'oncegate',
      version: JSON.parse(read('package.json')).version,
    });
  });
});
