/** A merchant of the sandbox. Its secret keys are public samples, which no other system accepts. */
export interface SandboxMerchant {
  readonly code: string;
  readonly businessName: string;
  readonly currency: string;
  readonly secrets: readonly string[];
}

export const SANDBOX_MERCHANTS: readonly SandboxMerchant[] = [
  {
    code: 'M-ALPHA',
    businessName: 'Alpha Trading Limited',
    currency: 'NGN',
    // Two secret keys, as during a key rotation.
    secrets: ['sk_sandbox_alpha', 'sk_sandbox_alpha_2'],
  },
  { code: 'M-BRAVO', businessName: 'Bravo Foods Limited', currency: 'NGN', secrets: ['sk_sandbox_bravo'] },
  {
    code: 'M-CHARLIE',
    businessName: 'Charlie Digital LLC',
    currency: 'USD',
    secrets: ['sk_sandbox_charlie'],
  },
];

/** The merchant of the secret key in an Authorization header. Undefined if the key is unknown. */
export function merchantOf(authorization = ''): SandboxMerchant | undefined {
  const secret = /^Bearer ([^\s,]+)$/i.exec(authorization)?.[1];
  return secret === undefined ? undefined : SANDBOX_MERCHANTS.find(({ secrets }) => secrets.includes(secret));
}
