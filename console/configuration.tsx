import { useEffect, useState } from 'preact/hooks';
import type { Configuration } from '../src/admin/console/contract.ts';
import { api } from './api.ts';
import { Facts, ViewHeading } from './parts.tsx';
import { moment, trouble } from './words.ts';

/** The configuration in force. Secrets are masked by the gateway. */
export function ConfigurationView() {
  const [configuration, setConfiguration] = useState<Configuration>();
  const [problem, setProblem] = useState<string>();
  const read = async () => {
    const answer = await api.configuration();
    setProblem(trouble(answer));
    if (answer.kind === 'ok') setConfiguration(answer.value);
  };
  useEffect(() => void read(), []);
  return (
    <>
      <ViewHeading>Configuration in force</ViewHeading>
      {problem && (
        <p class="notice bad" role="alert">
          {problem}
        </p>
      )}
      {!configuration && !problem && <p>Loading …</p>}
      {configuration && <Shown configuration={configuration} />}
      <div class="buttons">
        <button type="button" onClick={read}>
          Read it again
        </button>
      </div>
    </>
  );
}

function Shown({
  configuration: { file, inForceSince, warnings, sections },
}: {
  configuration: Configuration;
}) {
  return (
    <>
      <Facts
        rows={[
          ['File', file === null ? 'none: it was given when the gateway was started' : <code>{file}</code>],
          ['In force since', moment(inForceSince)],
        ]}
      />
      {warnings.length > 0 && (
        <ul class="notice warn">
          {warnings.map((warning) => (
            <li key={warning}>{warning}</li>
          ))}
        </ul>
      )}
      <p class="muted">Defaults are included. Secrets are masked.</p>
      <div class="panels loose">
        {sections.map(({ name, takesEffect, yaml }) => (
          <section class="panel" key={name} aria-labelledby={`section-${name}`}>
            <h2 id={`section-${name}`}>{name}</h2>
            <p class="muted">
              {takesEffect === 'reload'
                ? 'A change of the file takes effect while the gateway runs.'
                : 'A change of the file takes effect after a restart.'}
            </p>
            <pre>{yaml}</pre>
          </section>
        ))}
      </div>
    </>
  );
}
