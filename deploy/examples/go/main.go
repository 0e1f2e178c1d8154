// A batch producer of Sluice in Go: signs jobs, puts them on Kafka, and handles their results.
//
//	KAFKA=… INTAKE=… RESULTS=… TENANT=… KEY_ID=… KEY_FILE=… GROUP_PREFIX=… go run . "The capital of France?"
//	go run . -vectors ../../../docs/schemas/job_signature_vectors.json
//
// It needs nothing of Sluice: the signature is described in docs/producers.md, what is written and read in
// docs/schemas/job.json and result.json.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type result struct {
	ID       string `json:"id"`
	CustomID string `json:"custom_id"`
	Response *struct {
		Body struct {
			Choices []struct{ Message struct{ Content string } }
		}
	}
	Error *struct{ Code, Message string }
}

func main() {
	vectors := flag.String("vectors", "", "check these test vectors, and do nothing else")
	flag.Parse()
	if *vectors != "" {
		checkVectors(*vectors)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	pemBlock, _ := pem.Decode(must(os.ReadFile(os.Getenv("KEY_FILE"))))
	key := privateKey(pemBlock.Bytes)
	// One group for as long as there is the application: who comes back goes on behind what was handled.
	client := must(kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA"), ",")...),
		kgo.ConsumerGroup(os.Getenv("GROUP_PREFIX")+"go-example"), kgo.ConsumeTopics(os.Getenv("RESULTS")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AutoCommitMarks(), kgo.AutoCommitInterval(time.Second),
		kgo.SessionTimeout(6*time.Second), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	))
	defer client.Close()
	defer client.CommitMarkedOffsets(context.Background())

	waiting := map[string]bool{}
	for _, prompt := range flag.Args() {
		message := map[string]string{"role": "user", "content": prompt}
		body := map[string]any{"model": "default", "messages": []any{message}, "max_tokens": 64}
		value := must(json.Marshal(map[string]any{"schema_version": 1, "type": "job", "body": body}))
		expiresMs := strconv.FormatInt(time.Now().Add(10*time.Minute).UnixMilli(), 10)
		j := job{os.Getenv("INTAKE"), os.Getenv("TENANT"), os.Getenv("KEY_ID"), "go-" + rand.Text(), expiresMs, value}
		record := &kgo.Record{Topic: j.Topic, Key: []byte(j.CustomID), Value: value}
		for name, text := range j.headers(key) {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(text)})
		}
		check(client.ProduceSync(ctx, record).FirstErr()) // not sure whether it arrived? send it again, with its id
		waiting[j.CustomID] = true
	}
	seen := map[string]bool{}
	for len(waiting) > 0 {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			var line result
			check(json.Unmarshal(record.Value, &line))
			if strings.HasPrefix(line.CustomID, "go-") && !seen[line.ID] { // lines are written at least once
				handle(line)
			}
			seen[line.ID] = true
			delete(waiting, line.CustomID)
			client.MarkCommitRecords(record)
		})
	}
}

func handle(line result) {
	if line.Error != nil {
		fmt.Printf("%s: %s: %s\n", line.CustomID, line.Error.Code, line.Error.Message)
	} else {
		fmt.Printf("%s: %s\n", line.CustomID, line.Response.Body.Choices[0].Message.Content)
	}
}
