import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { parseConfig } from '../../../src/config/load.ts';
import type { Config } from '../../../src/config/schema.ts';
import { send } from '../../support/client.ts';
import { shutdownWithinMs } from '../../support/config.ts';
import { read } from '../../support/repository.ts';
import { stackForTest } from '../../support/stack.ts';

const FOLDER = fileURLToPath(new URL('../../../deploy/kubernetes', import.meta.url));
const ENVIRONMENT = {
  ONCEGATE_ADMIN_TOKEN: 'a'.repeat(32),
  ONCEGATE_METRICS_TOKEN: 'm'.repeat(32),
  REDIS_URL: 'rediss://redis:6379',
  DATABASE_URL: 'postgres://oncegate@postgres/payments',
};

/** Parsed YAML, whose form the test checks. */
type Manifest = ReturnType<typeof JSON.parse>;

function build(overlay: string): Manifest[] {
  const { status, stdout, stderr } = spawnSync('kubectl', ['kustomize', `${FOLDER}/${overlay}`], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(`kubectl kustomize: ${stderr}`);
  return parseAllDocuments(stdout).map((document) => document.toJS());
}

describe.each(['redis', 'postgres', 'sqlite'])('the manifests of the overlay %s', (overlay) => {
  const manifests = build(overlay);
  const of = (kind: string, name = 'oncegate'): Manifest => {
    const found = manifests.filter(
      ({ kind: its, metadata }) => its === kind && metadata.name.startsWith(name),
    );
    expect(found, `${kind} ${name}`).not.toHaveLength(0);
    return found[0];
  };
  const { spec: deployment } = of('Deployment');
  const { spec: pod } = deployment.template;
  const [container] = pod.containers;
  const configMap = of('ConfigMap');
  const config: Config = parseConfig(configMap.data['gateway.yaml'], ENVIRONMENT);

  it('mount the configuration under its generated name, and take its environment from the secret', () => {
    const { configMap: mounted } = pod.volumes.find(({ name }: { name: string }) => name === 'config');
    expect(mounted.name).toBe(configMap.metadata.name);
    const path = container.volumeMounts.find(({ name }: { name: string }) => name === 'config').mountPath;
    expect(container.args).toEqual(['serve', '--config', `${path}/gateway.yaml`]);
    expect(container.envFrom).toEqual([{ secretRef: { name: 'oncegate' } }]);
  });

  it('keep what the gateway writes on a volume', () => {
    const { mountPath } = container.volumeMounts.find(({ name }: { name: string }) => name === 'data');
    expect(config.store.identityFile).toMatch(new RegExp(`^${mountPath}/`));
    if (config.store.kind === 'sqlite') expect(config.store.path).toBe(mountPath);
    const volume = pod.volumes.find(({ name }: { name: string }) => name === 'data');
    expect(Object.keys(volume)).toContain(overlay === 'sqlite' ? 'persistentVolumeClaim' : 'emptyDir');
    if (overlay === 'sqlite')
      expect(volume.persistentVolumeClaim.claimName).toBe(of('PersistentVolumeClaim').metadata.name);
  });

  it('give a pod more time to end than the gateway takes, and let it serve until its readiness probe has failed', () => {
    expect(pod.terminationGracePeriodSeconds * 1000).toBeGreaterThan(shutdownWithinMs(config));
    // With one replica, another one does not start before this one has ended.
    if (overlay === 'sqlite') return;
    const { periodSeconds, failureThreshold } = container.readinessProbe;
    expect(config.shutdown.delayMs).toBeGreaterThan(periodSeconds * failureThreshold * 1000);
  });

  it('probe the admin port, which answers there', async () => {
    const ports = new Map(container.ports.map((port: Manifest) => [port.name, port.containerPort]));
    expect(ports).toEqual(
      new Map([
        ['http', config.listen.port],
        ['admin', config.admin.port],
      ]),
    );
    expect(config.admin).toMatchObject({ host: '0.0.0.0', token: ENVIRONMENT.ONCEGATE_ADMIN_TOKEN });
    const stack = await stackForTest();
    for (const probe of ['startupProbe', 'livenessProbe', 'readinessProbe']) {
      const { path, port } = container[probe].httpGet;
      expect(port).toBe('admin');
      expect((await send(stack.adminUrl, { path })).status).toBe(200);
    }
  });

  it('run as an ordinary user who can change nothing', () => {
    expect(pod.securityContext).toMatchObject({
      runAsNonRoot: true,
      seccompProfile: { type: 'RuntimeDefault' },
    });
    expect(pod.automountServiceAccountToken).toBe(false);
    expect(container.securityContext).toEqual({
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'] },
    });
    expect(container.resources.limits).not.toHaveProperty('cpu');
  });

  it('select each other', () => {
    const labels = deployment.template.metadata.labels;
    expect(deployment.selector.matchLabels).toEqual(labels);
    for (const name of ['oncegate', 'oncegate-admin'])
      expect(of('Service', name).spec.selector).toEqual(labels);
    expect(of('NetworkPolicy').spec.podSelector.matchLabels).toEqual(labels);
    const admin = of('Service', 'oncegate-admin');
    const monitor = of('ServiceMonitor').spec;
    expect(admin.metadata.labels).toMatchObject(monitor.selector.matchLabels);
    // The alerts select this job.
    expect(admin.metadata.labels[monitor.jobLabel]).toBe('oncegate');
    expect(monitor.endpoints[0].port).toBe(admin.spec.ports[0].name);
    expect(monitor.endpoints[0].authorization.credentials).toEqual({
      name: 'oncegate',
      key: 'ONCEGATE_METRICS_TOKEN',
    });
  });

  it('have as many replicas as the store permits', () => {
    if (overlay === 'sqlite') {
      expect(deployment).toMatchObject({ replicas: 1, strategy: { type: 'Recreate' } });
      expect(manifests.map(({ kind }) => kind)).not.toContain('HorizontalPodAutoscaler');
      return;
    }
    // The autoscaler decides.
    expect(deployment).not.toHaveProperty('replicas');
    expect(of('HorizontalPodAutoscaler').spec).toMatchObject({
      scaleTargetRef: { kind: 'Deployment', name: of('Deployment').metadata.name },
      minReplicas: 2,
    });
    expect(of('PodDisruptionBudget').spec.selector.matchLabels).toEqual(deployment.template.metadata.labels);
  });

  it('let the gateway reach the backend and the store', () => {
    const ports = of('NetworkPolicy').spec.egress.flatMap(({ ports }: Manifest) =>
      ports.map(({ port }: Manifest) => port),
    );
    expect(ports).toContain(Number(new URL(config.upstream.url).port));
    const port = { redis: 6379, postgres: 5432 }[overlay];
    if (port) expect(ports).toContain(port);
  });
});

it('the image has the version of the package', () => {
  const { version } = JSON.parse(read('package.json'));
  const { spec } = parse(readFileSync(`${FOLDER}/base/deployment.yaml`, 'utf8'));
  expect(spec.template.spec.containers[0].image).toBe(`oncegate:${version}`);
});
