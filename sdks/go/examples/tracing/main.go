// SPDX-License-Identifier: AGPL-3.0-only

// Tracing shows one trace across a queue: producer, broker, consumer. The client adds the trace
// context of the active span to the message's headers and to its calls, so that the broker's spans
// are below it (see [telemetry] in the broker's configuration). StartProcessing is the consumer's
// span.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	fila "github.com/faiscadev/fila/sdks/go"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	otel.SetTracerProvider(sdktrace.NewTracerProvider())
	tracer := otel.Tracer("fila.examples.tracing")
	client, err := fila.NewClient(cmp.Or(os.Getenv("FILA_ADDR"), fila.DefaultTarget))
	if err != nil {
		return err
	}
	defer client.Close()
	queue := fmt.Sprintf("tracing-%08x", rand.Uint32())
	if _, err := client.CreateQueue(ctx, queue); err != nil {
		return err
	}

	spanCtx, sending := tracer.Start(ctx, "send "+queue)
	_, err = client.Enqueue(spanCtx, queue, nil, []byte("hello"))
	sending.End()
	if err != nil {
		return err
	}

	received, err := client.Receive(ctx, queue, 1, fila.WithWait(2*time.Second))
	if err != nil {
		return err
	}
	if len(received) != 1 {
		return errors.New("no message came")
	}
	spanCtx, end := fila.StartProcessing(ctx, received[0])
	err = received[0].Ack(spanCtx)
	end(err)
	if err != nil {
		return err
	}

	sent := sending.SpanContext().TraceID()
	processed := trace.SpanContextFromContext(spanCtx).TraceID()
	if sent != processed {
		return errors.New("the trace was broken")
	}
	fmt.Println("one trace for both sides:", sent)
	_, err = client.DeleteQueue(ctx, queue)
	return err
}
