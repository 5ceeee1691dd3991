// SPDX-License-Identifier: AGPL-3.0-only

// Secure uses TLS, a client certificate and an API key; each only if its variable is set. FILA_CA
// names the CA's certificate, FILA_CERT and FILA_KEY the client's own, FILA_API_KEY the key.
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

	fila "github.com/faiscadev/fila/sdks/go"
)

func connect() (*fila.Client, error) {
	var options []fila.ClientOption
	ca, cert := os.Getenv("FILA_CA"), os.Getenv("FILA_CERT")
	if ca != "" || cert != "" {
		tls := fila.TLSOptions{CAFile: ca, CertFile: cert, KeyFile: os.Getenv("FILA_KEY")}
		options = append(options, fila.WithTLS(tls))
	}
	if key := os.Getenv("FILA_API_KEY"); key != "" {
		options = append(options, fila.WithAPIKey(key))
	}
	return fila.NewClient(cmp.Or(os.Getenv("FILA_ADDR"), fila.DefaultTarget), options...)
}

func main() {
	err := run(context.Background())
	switch {
	case errors.Is(err, fila.ErrUnauthenticated):
		log.Fatalf("the broker does not accept the API key: %v", err)
	case errors.Is(err, fila.ErrUnavailable):
		log.Fatalf("no broker, or none with the right certificate: %v", err)
	case err != nil:
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	client, err := connect()
	if err != nil {
		return err
	}
	defer client.Close()
	queue := fmt.Sprintf("secure-%08x", rand.Uint32())
	if _, err := client.CreateQueue(ctx, queue); err != nil {
		return err
	}

	if _, err := client.Enqueue(ctx, queue, nil, []byte("for your eyes only")); err != nil {
		return err
	}
	received, err := client.Receive(ctx, queue, 1, fila.WithWait(2*time.Second))
	if err != nil {
		return err
	}
	if len(received) != 1 {
		return errors.New("no message came")
	}
	fmt.Printf("received '%s'\n", received[0].Payload)
	if err := received[0].Ack(ctx); err != nil {
		return err
	}
	_, err = client.DeleteQueue(ctx, queue)
	return err
}
