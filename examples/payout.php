<?php
// One payout, at most once, however often this runs: php payout.php REFERENCE AMOUNT BANK_CODE ACCOUNT_NUMBER
// Environment: API_URL, SECRET_KEY. Exit codes: 0 paid, 1 refused by the backend, 2 unknown: run it again later with the same arguments.
[, $reference, $amount, $bank, $account] = $argv;
$file = "payout-$reference.json";
// Key and body are on the disk before they are sent. A later run sends the same ones again.
if (!file_exists($file)) {
    is_numeric($amount) || fwrite(STDERR, "AMOUNT must be a number\n") && exit(1);
    $body = ['action' => 'withdraw', 'amount' => (float) $amount, 'bank_code' => $bank, 'account_number' => $account];
    $draft = fopen($name = "$file." . bin2hex(random_bytes(16)), 'w'); // Containers that share a folder can have the same process id.
    fwrite($draft, json_encode(['key' => bin2hex(random_bytes(16)), 'body' => json_encode($body), 'at' => time()])) && fsync($draft) || exit(1);
    @link($name, $file); // It fails if another run was first: that run's key counts.
    fsync(fopen('.', 'r'));
}
['key' => $key, 'body' => $body, 'at' => $at] = json_decode(file_get_contents($file), true);
$headers = ['Authorization: Bearer ' . getenv('SECRET_KEY'), 'Content-Type: application/json', "x-service-idempotency: $key"];
$http = ['method' => 'POST', 'header' => $headers, 'content' => $body, 'timeout' => 30, 'ignore_errors' => true, 'follow_location' => 0];
foreach ([1, 2, 4, 8, 0] as $wait) {
    if (time() - $at >= 23 * 3600) break; // The gateway may forget a key 24 hours after its first use. To send it again then would be a second payout.
    $http_response_header = [];
    $text = @file_get_contents(getenv('API_URL') . '/v1/index.php', false, stream_context_create(['http' => $http]));
    $head = implode("\n", $http_response_header);
    // Without a status the request got no answer, which says nothing about the payout.
    if ($text !== false && preg_match('~^HTTP/\S+ (\d+)~', $head, $found)) {
        $status = (int) $found[1];
        $isProblem = stripos($head, 'content-type: application/problem+json') !== false;
        // An answer of the gateway itself says whether to send the same request again. None of them says that the payout failed.
        // PHP returns a text that breaks off as if it were whole. A problem that breaks off says as little as no answer.
        if ($isProblem ? (json_decode($text)->error->retry ?? 'same_key') !== 'same_key' : $status !== 429) {
            echo "$text\n";
            if ($isProblem || preg_match('~^[35]~', $found[1])) break; // A page behind a redirect says nothing about the payout.
            exit($status < 300 ? 0 : 1);
        }
        if (preg_match('~^retry-after: (\d+)~im', $head, $found)) $wait = max($wait, (int) $found[1]);
    }
    sleep($wait);
}
fwrite(STDERR, "unknown: do not pay by other means, and contact us. Key: $key\n");
exit(2);
