/**
 * Shows the OpenAPI document that the page carries, with Swagger UI. The page has no origin and may open no connection
 * (src/admin/docs.ts): nothing can be sent from here, so it offers no requests to send and asks for no secret key.
 */

interface Spec {
  info: { license?: { name: string } };
  servers?: { url: string; description?: string }[];
  components?: { securitySchemes?: Record<string, { description?: string }> };
}

/** What Swagger UI hands to a plugin, as far as it is used here. */
interface System {
  React: { createElement(type: string, props: object | null, ...children: unknown[]): unknown };
}

declare const SwaggerUIBundle: (options: object) => void;

const root = document.querySelector('#interface') as HTMLElement;
const spec: Spec = JSON.parse(document.querySelector('#openapi')?.textContent ?? '');

/** In place of forms to choose a server and to enter a secret key: what they are. */
function readOnly({ React: { createElement: h } }: System) {
  const servers = (spec.servers ?? []).map(({ url, description }) =>
    h('p', { key: url }, h('code', null, url), ` ${description ?? ''}`),
  );
  const schemes = Object.entries(spec.components?.securitySchemes ?? {}).map(([name, { description }]) =>
    h('p', { key: name }, h('code', null, 'Authorization: Bearer …'), ` ${description ?? ''}`),
  );
  return {
    components: {
      ServersContainer: () => h('div', null, ...servers),
      AuthorizeBtnContainer: () => h('div', null, ...schemes),
      authorizeOperationBtn: () => null,
      // Without a link, because the page may not open windows.
      License: () => h('p', null, `Licence: ${spec.info.license?.name}`),
      // The operations have no tags, and Swagger UI would call them "default".
      OperationTag: ({ children }: { children: unknown }) =>
        h('section', null, h('h2', null, 'Requests'), children),
    },
  };
}

/** What Swagger UI does not tell people with a screen reader. */
const ATTRIBUTES: readonly [selector: string, name: string, value: string][] = [
  ['.examples-select-element', 'aria-label', 'Example'],
  ['h4', 'aria-level', '3'],
  ['table[role=region]', 'role', 'table'],
  ['.information-container', 'role', 'region'],
  ['.information-container', 'aria-label', 'About'],
  ['.scheme-container', 'role', 'region'],
  ['.scheme-container', 'aria-label', 'Address and secret key'],
];

function setAttributes(): void {
  for (const [selector, name, value] of ATTRIBUTES)
    for (const element of document.querySelectorAll(selector))
      if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

new MutationObserver(setAttributes).observe(root, { childList: true, subtree: true });
SwaggerUIBundle({
  domNode: root,
  spec,
  plugins: [readOnly],
  docExpansion: 'full',
  supportedSubmitMethods: [],
  showCommonExtensions: true,
  syntaxHighlight: { activated: false },
  // Otherwise the document would be sent to a validator on the internet.
  validatorUrl: null,
});
