import java.net.URI;
import java.net.http.*;
import java.nio.file.*;
/** One payout, at most once, however often this runs: java Payout.java REFERENCE AMOUNT BANK_CODE ACCOUNT_NUMBER
 *  Environment: API_URL, SECRET_KEY. Exit codes: 0 paid, 1 refused by the backend, 2 unknown: run it again later with the same arguments. */
class Payout {
  public static void main(String[] a) throws Exception {
    Path file = Path.of("payout-" + a[0] + ".txt"), draft = Path.of(file + "." + java.util.UUID.randomUUID());
    // Key and body are on the disk before they are sent. A later run sends the same ones again.
    if (!Files.exists(file)) {
      if (!(a[1] + a[2] + a[3]).matches("[0-9A-Za-z.-]*")) throw new IllegalArgumentException("a quotation mark would change the JSON");
      String body = "{\"action\":\"withdraw\",\"amount\":%s,\"bank_code\":\"%s\",\"account_number\":\"%s\"}".formatted(a[1], a[2], a[3]);
      Files.writeString(draft, java.util.UUID.randomUUID() + "\n" + body + "\n" + System.currentTimeMillis(), StandardOpenOption.CREATE, StandardOpenOption.TRUNCATE_EXISTING, StandardOpenOption.SYNC);
      try { Files.createLink(file, draft); } catch (FileAlreadyExistsException anotherRunWasFirst) { /* its key counts */ }
      try (var folder = java.nio.channels.FileChannel.open(Path.of("."))) { folder.force(true); }
    }
    var saved = Files.readAllLines(file);
    var request = HttpRequest.newBuilder(URI.create(System.getenv("API_URL") + "/v1/index.php")).timeout(java.time.Duration.ofSeconds(30))
        .header("Authorization", "Bearer " + System.getenv("SECRET_KEY")).header("Content-Type", "application/json")
        .header("x-service-idempotency", saved.get(0)).POST(HttpRequest.BodyPublishers.ofString(saved.get(1))).build();
    var client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    for (long wait : new long[] {1, 2, 4, 8, 0}) {
      // The gateway may forget a key 24 hours after its first use. To send it again then would be a second payout.
      if (System.currentTimeMillis() - Long.parseLong(saved.get(2)) > 23 * 3600_000) break;
      try {
        var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
        boolean isProblem = answer.headers().firstValue("content-type").orElse("").equals("application/problem+json");
        // An answer of the gateway itself says whether to send the same request again. None of them says that the payout failed.
        if (isProblem ? !answer.body().contains("\"retry\":\"same_key\"") : answer.statusCode() != 429) {
          System.out.println(answer.body());
          if (isProblem || answer.statusCode() >= 500 || answer.statusCode() / 100 == 3) break; else System.exit(answer.statusCode() < 300 ? 0 : 1);
        }
        wait = Math.max(wait, answer.headers().firstValueAsLong("retry-after").orElse(0));
      } catch (java.io.IOException | NumberFormatException e) { /* No answer, which says nothing, or Retry-After is a date. */ }
      Thread.sleep(wait * 1000);
    }
    System.err.println("unknown: do not pay by other means, and contact us. Key: " + saved.get(0)); System.exit(2);
  }
}
