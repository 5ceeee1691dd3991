// SPDX-License-Identifier: AGPL-3.0-only

// Batch moves many messages at a time, both ways: what a load job or a pipeline does.
package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"golang.org/x/text/language"
	"golang.org/x/text/message"

	fila "github.com/faiscadev/fila/sdks/go"
)

const messages = 10_000

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	target := cmp.Or(os.Getenv("FILA_ADDR"), fila.DefaultTarget)
	client, err := fila.NewClient(target, fila.WithTimeout(30*time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	queue := fmt.Sprintf("batch-%08x", rand.Uint32())
	if _, err := client.CreateQueue(ctx, queue); err != nil {
		return err
	}
	if err := load(ctx, client, queue); err != nil {
		return err
	}
	if err := drain(ctx, client, queue); err != nil {
		return err
	}
	_, err = client.DeleteQueue(ctx, queue)
	return err
}

func load(ctx context.Context, client *fila.Client, queue string) error {
	start := time.Now()
	rows := make([]fila.EnqueueMessage, messages)
	for n := range rows {
		row := strconv.Itoa(n)
		rows[n] = fila.EnqueueMessage{
			Queue:   queue,
			Headers: map[string]string{"row": row},
			Payload: bytes.Repeat([]byte("x"), 256),
			// With a key for each message the client may send a request again when the broker was
			// away.
			IdempotencyKey: queue + "-" + row,
		}
	}
	results, err := client.EnqueueMany(ctx, rows)
	if err != nil {
		return err
	}
	stored := 0
	for _, result := range results {
		if result.Err == nil {
			stored++
		}
	}
	report("stored", stored, start)
	return nil
}

func drain(ctx context.Context, client *fila.Client, queue string) error {
	start := time.Now()
	done := 0
	for {
		received, err := client.Receive(ctx, queue, 1_000)
		if err != nil {
			return err
		}
		if len(received) == 0 {
			break
		}
		outcomes, err := client.AckMany(ctx, received)
		if err != nil {
			return err
		}
		for _, outcome := range outcomes {
			if outcome == nil {
				done++
			}
		}
	}
	report("drained", done, start)
	return nil
}

func report(what string, count int, start time.Time) {
	rate := float64(count) / time.Since(start).Seconds()
	printer := message.NewPrinter(language.English)
	printer.Printf("%s %d messages at %.0f/s\n", what, count, rate)
}
