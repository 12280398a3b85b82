# One payout, at most once, however often this runs: python3 payout.py REFERENCE AMOUNT BANK_CODE ACCOUNT_NUMBER
# Environment: API_URL, SECRET_KEY. Exit codes: 0 paid, 1 refused by the backend, 2 unknown: run it again later with the same arguments.
import contextlib, http.client, json, os, sys, time, urllib.error, urllib.request, uuid
reference, amount, bank_code, account_number = sys.argv[1:]
path = f"payout-{reference}.json"
# Key and body are on the disk before they are sent. A later run sends the same ones again.
if not os.path.exists(path):
    body = {"action": "withdraw", "amount": float(amount), "bank_code": bank_code, "account_number": account_number}
    with open(draft := f"{path}.{uuid.uuid4()}", "w") as file:  # Containers that share a folder can have the same process id.
        json.dump({"key": str(uuid.uuid4()), "body": json.dumps(body), "at": time.time()}, file)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):  # Another run was first: its key counts.
        os.link(draft, path)
    os.fsync(os.open(".", os.O_RDONLY))
saved = json.load(open(path))
headers = {"Authorization": "Bearer " + os.environ["SECRET_KEY"], "Content-Type": "application/json",
           "x-service-idempotency": saved["key"]}
# Redirects are not followed: a page behind one says nothing about the payout.
no_redirects = type("NoRedirects", (urllib.request.HTTPRedirectHandler,), {"redirect_request": lambda *_: None})
request = urllib.request.Request(os.environ["API_URL"] + "/v1/index.php", saved["body"].encode(), headers)
# The gateway may forget a key 24 hours after its first use. To send it again then would be a second payout.
for wait in (wait for wait in (1, 2, 4, 8, 0) if time.time() - saved["at"] < 23 * 3600):
    try:
        try:
            answer = urllib.request.build_opener(no_redirects).open(request, timeout=30)
        except urllib.error.HTTPError as error: answer = error
        text = answer.read().decode(errors="replace")
        # An answer of the gateway itself says whether to send the same request again. None of them says that the payout failed.
        is_problem = answer.headers["Content-Type"] == "application/problem+json"
        if not (json.loads(text).get("error", {}).get("retry") == "same_key" if is_problem else answer.status == 429):
            print(text)
            if is_problem or answer.status // 100 in (3, 5): break
            sys.exit(int(answer.status >= 300))
        wait = max(wait, int(after) if (after := answer.headers.get("Retry-After", "")).isdecimal() else 0)
    except (OSError, http.client.HTTPException, ValueError):  # The request got no answer, which says nothing about the payout.
        pass
    time.sleep(wait)
sys.exit(print("unknown: do not pay by other means, and contact us. Key:", saved["key"], file=sys.stderr) or 2)
