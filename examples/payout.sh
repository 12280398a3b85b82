#!/bin/sh
# One payout, at most once, however often this runs: sh payout.sh REFERENCE AMOUNT BANK_CODE ACCOUNT_NUMBER
# Environment: API_URL, SECRET_KEY. Exit codes: 0 paid, 1 refused by the backend, 2 unknown: run it again later with the same arguments.
set -eu
run=$(cat /proc/sys/kernel/random/uuid) # Containers that share a folder can have the same process id.
file=payout-$1.txt draft=payout-$1.draft.$run body=payout-$1.body.$run answer=payout-$1.answer.$run
# Key and body are on the disk before they are sent. A later run sends the same ones again.
if [ ! -f "$file" ]; then
  case $2$3$4 in *[!0-9A-Za-z.-]*) echo 'a quotation mark would change the JSON' >&2 && exit 1 ;; esac
  printf '%s\n{"action":"withdraw","amount":%s,"bank_code":"%s","account_number":"%s"}\n%s\n' "$run" "$2" "$3" "$4" "$(date +%s)" > "$draft"
  sync "$draft" && ln "$draft" "$file" 2>/dev/null || : # Another run was first: its key counts.
  sync .
fi
key=$(sed -n 1p "$file") && sed -n 2p "$file" > "$body"
# The secret key goes through a pipe, because other users of the machine can read the arguments of a process.
call() {
  printf 'header = "Authorization: Bearer %s"\n' "$SECRET_KEY" |
    curl -sS --config - --max-time 30 -o "$answer" -w '%{http_code} %{content_type} %header{retry-after}' \
      -H 'Content-Type: application/json' -H "x-service-idempotency: $key" --data-binary "@$body" "$API_URL/v1/index.php"
}
for wait in 1 2 4 8 0; do
  # The gateway may forget a key 24 hours after its first use. To send it again then would be a second payout.
  [ $(($(date +%s) - $(sed -n 3p "$file"))) -lt 82800 ] || break
  if head=$(call); then # Without an answer, nothing is known about the payout.
    status=${head%% *} retry=''
    # An answer of the gateway itself says whether to send the same request again. None of them says that the payout failed.
    case $head in *application/problem+json*) retry=$(sed 's/.*"retry":"\([a-z_]*\)".*/\1/' "$answer") ;; esac
    case $status:$retry in
      429: | *:same_key) ;;
      [35]??: | *:?*) cat "$answer" && break ;;
      2??:) cat "$answer" && exit 0 ;; *) cat "$answer" && exit 1 ;;
    esac
    case ${head##* } in '' | *[!0-9]*) ;; *) [ "${head##* }" -le "$wait" ] || wait=${head##* } ;; esac # It can be a date.
  fi
  sleep "$wait"
done
echo "unknown: do not pay by other means, and contact us. Key: $key" >&2
exit 2
