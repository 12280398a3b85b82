import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';

export interface DialogProps {
  title: string;
  /** Called when it is closed, also by Escape. */
  onClose(): void;
  children: ComponentChildren;
}

/**
 * A modal dialogue. The browser keeps the focus inside; it begins at the heading, and returns to where it was, or to the view's
 * heading if that is gone.
 */
export function Dialog({ title, onClose, children }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useRef<HTMLHeadingElement>(null);

  useLayoutEffect(() => {
    const [opener, element] = [document.activeElement, dialog.current];
    element?.showModal();
    return () => {
      element?.close();
      const target =
        opener instanceof HTMLElement && opener.isConnected ? opener : document.querySelector('h1');
      target?.focus();
    };
  }, []);
  // Also when the dialogue shows the result: its controls are others then.
  useLayoutEffect(() => heading.current?.focus(), [title]);

  const cancel = (event: Event) => {
    event.preventDefault();
    onClose();
  };
  return (
    <dialog ref={dialog} aria-labelledby="dialog-title" onCancel={cancel}>
      <div class="body">
        <h2 id="dialog-title" tabIndex={-1} ref={heading}>
          {title}
        </h2>
        {children}
      </div>
    </dialog>
  );
}
