import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';

/**
 * The heading of a view. It takes the focus when the view appears, so that screen readers begin there.
 *
 * A layout effect moves the focus together with the change of the page, here as in forms and dialogues. An effect that ran
 * a frame later could take the focus from a person who types already.
 */
export function ViewHeading({ children }: { children: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => heading.current?.focus(), []);
  return (
    <h1 tabIndex={-1} ref={heading}>
      {children}
    </h1>
  );
}

/** A list of names and values. Rows without a value are left out. */
export function Facts({ rows }: { rows: readonly (readonly [name: string, value: ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {rows
        .filter(([, value]) => value !== undefined && value !== null && value !== '')
        .map(([name, value]) => (
          <>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </>
        ))}
    </dl>
  );
}

export interface FieldProps {
  id: string;
  label: string;
  hint?: string;
  mistake?: string | undefined;
  /** Gets the attributes that tie the control to its label, hint and mistake. */
  children: (attributes: {
    id: string;
    'aria-describedby': string | undefined;
    'aria-invalid': boolean;
  }) => ComponentChildren;
}

/** A control with its label, and what is wrong with its value. */
export function Field({ id, label, hint, mistake, children }: FieldProps) {
  const described = [hint && `${id}-hint`, mistake && `${id}-mistake`].filter(Boolean).join(' ');
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({ id, 'aria-describedby': described || undefined, 'aria-invalid': mistake !== undefined })}
      {hint && (
        <span class="hint" id={`${id}-hint`}>
          {hint}
        </span>
      )}
      {mistake && (
        <span class="mistake" id={`${id}-mistake`}>
          {mistake}
        </span>
      )}
    </div>
  );
}

/** Wide tables scroll inside this box, also by keyboard. */
export function ScrollBox({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: without it, Safari users cannot scroll this box by keyboard (WCAG 2.1.1)
    <section class="scroll" tabIndex={0} aria-label={label}>
      {children}
    </section>
  );
}
