// SPDX-License-Identifier: AGPL-3.0-only

// Quickstart takes one message from a producer to a consumer.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"

	fila "github.com/faiscadev/fila/sdks/go"
)

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
	queue := fmt.Sprintf("quickstart-%08x", rand.Uint32())
	if _, err := client.CreateQueue(ctx, queue); err != nil {
		return err
	}

	headers := map[string]string{"tenant": "acme"}
	messageID, err := client.Enqueue(ctx, queue, headers, []byte("hello"))
	if err != nil {
		return err
	}
	fmt.Println("enqueued", messageID)

	consumer, err := client.Consume(ctx, queue)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for message := range consumer.Messages() {
		fmt.Printf("received '%s' of %s\n", message.Payload, message.Headers["tenant"])
		if err := message.Ack(ctx); err != nil {
			return err
		}
		break
	}
	if err := consumer.Err(); err != nil {
		return err
	}

	_, err = client.DeleteQueue(ctx, queue)
	return err
}
