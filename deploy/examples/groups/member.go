package main // Run as: API=http://127.0.0.1:5000/v1/queuey KEY=… go run member.go GROUP QUEUE NAME

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"
)

type object = map[string]any

func at(parent any, key string) object { found, _ := parent.(object)[key].(object); return found }
func call(method, path string, body object) (answer object) {
	text, _ := json.Marshal(body)
	request, _ := http.NewRequest(method, os.Getenv("API")+path, bytes.NewReader(text))
	request.Header.Set("Authorization", "Application "+os.Getenv("KEY"))
	response, err := (&http.Client{Timeout: 6 * time.Second}).Do(request)
	if err == nil {
		defer response.Body.Close()
		err = json.NewDecoder(response.Body).Decode(&answer)
	}
	if answer["status"] != "ok" { // It ends. Started again with the same NAME, it has its partitions again at once.
		panic(fmt.Sprint(method, " ", err, answer["error_msg"]))
	}
	return
}
func main() {
	group, queue, session, sent := os.Args[1], os.Args[2], 6.0, time.Now().Round(0) // The clock that goes on in sleep.
	wish := object{"queues": []string{queue}, "instance": os.Args[3], "session": session}
	member := call("POST", "/_groups/"+group+"/members", wish)["member"].(string)
	epochs, offsets, givenBack := object{}, object{}, object{}
	for {
		named := object{"owned": object{queue: epochs}, "given_back": object{queue: givenBack}, "wait": 0.2}
		began, beat := time.Now().Round(0), call("POST", "/_groups/"+group+"/members/"+member, named)
		if time.Since(sent).Seconds() >= session || len(beat["lost"].(object)) > 0 {
			panic("the session is over")
		}
		sent, givenBack = began, object{}
		for partition, taken := range at(beat["take"], queue) {
			epochs[partition], offsets[partition] = taken.(object)["epoch"], taken.(object)["offset"]
		}
		for partition, asked := range at(beat["give_back"], queue) {
			givenBack[partition] = asked.(object)["epoch"] // The next heartbeat says so.
			delete(epochs, partition)
		}
		for partition, epoch := range epochs {
			page := fmt.Sprint("/", queue, "?partitions=", partition, "&after=", cmp.Or(offsets[partition], any("")))
			messages := call("GET", page, nil)["messages"].([]any)
			for ; len(messages) > 0 && time.Since(sent).Seconds() < session/3; messages = messages[1:] {
				fmt.Println(partition, messages[0].(object)["message_id"], messages[0].(object)["body"])
				offsets[partition] = messages[0].(object)["message_id"]
				commits := object{partition: object{"epoch": epoch, "offset": offsets[partition]}}
				call("PUT", "/"+queue+"/offsets/"+group, object{"member": member, "commits": commits})
			}
		}
	}
}
