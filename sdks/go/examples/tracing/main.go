// SPDX-License-Identifier: AGPL-3.0-only

// Tracing shows one trace across a queue: the consumer's span is a child of the producer's. The
// client adds the trace context of the active span to the message's headers; the consumer reads it
// with OpenTelemetry's own propagator.
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

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	fila "github.com/faiscadev/fila/sdks/go"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	tracer := sdktrace.NewTracerProvider().Tracer("fila.examples.tracing")
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
	carrier := propagation.MapCarrier(received[0].Headers)
	parent := propagation.TraceContext{}.Extract(ctx, carrier)
	spanCtx, processing := tracer.Start(parent, "process "+queue)
	err = received[0].Ack(spanCtx)
	processing.End()
	if err != nil {
		return err
	}

	sent, processed := sending.SpanContext().TraceID(), processing.SpanContext().TraceID()
	if sent != processed {
		return errors.New("the trace was broken")
	}
	fmt.Println("one trace for both sides:", sent)
	return client.DeleteQueue(ctx, queue)
}
