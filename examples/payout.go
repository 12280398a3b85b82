// One payout, at most once, however often this runs: go run payout.go REFERENCE AMOUNT BANK_CODE ACCOUNT_NUMBER
// Environment: API_URL, SECRET_KEY. Exit codes: 0 paid, 1 refused by the backend, 2 unknown: run it again later with the same arguments.
package main
import ("bytes"; "crypto/rand"; "encoding/json"; "fmt"; "io"; "net/http"; "os"; "strconv"; "time")
func must[T any](value T, err error) T { if err != nil { panic(err) }; return value }
func main() {
	file := "payout-" + os.Args[1] + ".json"
	// Key and body are on the disk before they are sent. A later run sends the same ones again.
	if _, err := os.Stat(file); err != nil {
		random := make([]byte, 16); must(rand.Read(random))
		body := must(json.Marshal(map[string]any{"action": "withdraw", "amount": json.Number(os.Args[2]), "bank_code": os.Args[3], "account_number": os.Args[4]}))
		draft := must(os.Create(fmt.Sprintf("%s.%x", file, random)))
		must(draft.Write(must(json.Marshal([]string{fmt.Sprintf("%x", random), string(body), time.Now().Format(time.RFC3339)}))))
		must(0, draft.Sync()); _ = os.Link(draft.Name(), file) // It fails if another run was first: that run's key counts.
		must(0, must(os.Open(".")).Sync())
	}
	var saved []string; must(0, json.Unmarshal(must(os.ReadFile(file)), &saved))
	client := http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, wait := range []int{1, 2, 4, 8, 0} {
		// The gateway may forget a key 24 hours after its first use. To send it again then would be a second payout.
		if time.Since(must(time.Parse(time.RFC3339, saved[2]))) > 23*time.Hour { break }
		request := must(http.NewRequest("POST", os.Getenv("API_URL")+"/v1/index.php", bytes.NewBufferString(saved[1])))
		request.Header = http.Header{"Authorization": {"Bearer " + os.Getenv("SECRET_KEY")}, "Content-Type": {"application/json"}, "X-Service-Idempotency": {saved[0]}}
		if answer, err := client.Do(request); err == nil { // Without an answer, nothing is known about the payout.
			if text, err := io.ReadAll(answer.Body); err == nil {
				// An answer of the gateway itself says whether to send the same request again. None of them says that the payout failed.
				var p struct{ Error struct{ Retry string } }
				isProblem := answer.Header.Get("Content-Type") == "application/problem+json" && json.Unmarshal(text, &p) == nil
				if p.Error.Retry != "same_key" && (isProblem || answer.StatusCode != 429) {
					fmt.Println(string(text))
					if isProblem || answer.StatusCode >= 500 || answer.StatusCode/100 == 3 { break } else { os.Exit(answer.StatusCode / 300) }
				}
				if after, _ := strconv.Atoi(answer.Header.Get("Retry-After")); after > wait { wait = after }
			}
		}
		time.Sleep(time.Duration(wait) * time.Second)
	}
	fmt.Fprintln(os.Stderr, "unknown: do not pay by other means, and contact us. Key:", saved[0]); os.Exit(2)
}
