// SPDX-License-Identifier: AGPL-3.0-only

// Worker runs handlers side by side: failures are retried, hopeless ones dead-lettered. A signal
// stops it, and it finishes what it has begun.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	fila "github.com/faiscadev/fila/sdks/go"
)

const (
	messages = 20
	handlers = 5
)

// handle is what a real worker does with a message; this one cannot stand the number 13.
func handle(_ context.Context, message *fila.ConsumeMessage) error {
	time.Sleep(20 * time.Millisecond)
	if string(message.Payload) == "13" {
		return errors.New("unlucky number")
	}
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	client, err := fila.NewClient(cmp.Or(os.Getenv("FILA_ADDR"), fila.DefaultTarget))
	if err != nil {
		return err
	}
	defer client.Close()
	queue := fmt.Sprintf("worker-%08x", rand.Uint32())
	// The second failure of a message is its last.
	deadLetters, err := client.CreateQueue(ctx, queue, fila.MaxAttempts(2))
	if err != nil {
		return err
	}
	batch := make([]fila.EnqueueMessage, messages)
	for n := range batch {
		batch[n] = fila.EnqueueMessage{Queue: queue, Payload: []byte(strconv.Itoa(n))}
	}
	if _, err := client.EnqueueMany(ctx, batch); err != nil {
		return err
	}

	if err := process(ctx, client, queue); err != nil {
		return err
	}

	letters, err := client.Receive(ctx, deadLetters, 1, fila.WithWait(2*time.Second))
	if err != nil {
		return err
	}
	if len(letters) != 1 {
		return errors.New("there is no dead letter")
	}
	fmt.Printf("%d messages were processed\n", messages-1)
	fmt.Printf("message %s is a dead letter: %s\n", letters[0].Payload, letters[0].LastError)
	if err := letters[0].Ack(ctx); err != nil {
		return err
	}
	_, err = client.DeleteQueue(ctx, queue)
	return err
}

// process ends when all is handled; a real worker goes on until a signal comes.
func process(ctx context.Context, client *fila.Client, queue string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	var settled atomic.Int32
	count := func(event fila.Event) {
		isSettled := event.Kind == fila.EventAcked || event.Kind == fila.EventNacked
		if isSettled && settled.Add(1) == messages+1 { // One of them twice.
			stop()
		}
	}
	worker, err := client.Worker(queue, handle,
		fila.WithConcurrency(handlers), fila.WithOnEvent(count))
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}
