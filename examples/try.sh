#!/bin/sh
# One withdrawal from the sandbox that `npm start` runs: sh try.sh KEY [FAULT]. For real payouts, copy payout.sh.
# Prints the status, whether the answer is a replay, and the beginning of the body.
curl -si "${API_URL:-http://127.0.0.1:8080}/v1/index.php" \
  -H 'Authorization: Bearer sk_sandbox_alpha' -H 'Content-Type: application/json' \
  -H "x-service-idempotency: $1" ${2:+-H "X-Sandbox-Fault: $2"} \
  -d '{"action":"withdraw","amount":125.50,"bank_code":"058","account_number":"0123456789"}' |
  tr -d '\r' | grep -e '^HTTP' -e '^Idempotent-Replayed' -e '^{' | cut -c 1-79
