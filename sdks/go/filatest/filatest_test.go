// SPDX-License-Identifier: AGPL-3.0-only

package filatest_test

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/filatest"
)

// patience is how long a test waits for what must happen; a loaded machine needs some.
const patience = time.Minute

// addressWanted has TestMain start a broker, say where it is, and wait to be killed.
const addressWanted = "FILATEST_ADDRESS_WANTED"

func TestMain(m *testing.M) {
	if os.Getenv(addressWanted) == "" {
		os.Exit(m.Run())
	}
	broker, err := filatest.Start()
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString(broker.Address() + "\n")
	select {}
}

func newClient(t *testing.T, broker *filatest.Broker) *fila.Client {
	t.Helper()
	client, err := fila.NewClient(broker.Address(), fila.WithTimeout(patience))
	check(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestBrokerIsARealOne(t *testing.T) {
	client := newClient(t, filatest.New(t))
	ctx := t.Context()
	check(t, client.WaitReady(ctx))
	if _, err := client.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	settings := []fila.QueueSetting{fila.MaxAttempts(3), fila.VisibilityTimeout(time.Minute)}
	for range 2 {
		letters, err := client.EnsureQueue(ctx, "orders", settings...)
		check(t, err)
		if letters != "orders.dlq" {
			t.Fatalf("the dead-letter queue is %q", letters)
		}
	}
	_, err := client.EnsureQueue(ctx, "orders", fila.MaxAttempts(5))
	if !errors.Is(err, fila.ErrQueueAlreadyExists) ||
		!strings.Contains(err.Error(), "max_attempts is 3, not 5") {
		t.Fatalf("other settings: %v", err)
	}
	for range 3 {
		_, err := client.EnqueueJSON(ctx, "orders", nil, map[string]int{"number": 7})
		check(t, err)
	}
	messages, err := client.Receive(ctx, "orders", 3, fila.WithWait(patience))
	check(t, err)
	var read map[string]int
	check(t, messages[0].JSON(&read))
	if read["number"] != 7 {
		t.Fatalf("the message says %v", read)
	}
	results, err := client.ExtendMany(ctx, messages, time.Hour)
	check(t, err)
	for _, result := range results {
		check(t, result.Err)
		if time.Until(result.LeaseExpiresAt) < 30*time.Minute {
			t.Fatalf("the lease ends at %v", result.LeaseExpiresAt)
		}
	}
	errs, err := client.AckMany(ctx, messages)
	check(t, errors.Join(append(errs, err)...))
}

func TestBrokersHaveNothingInCommonAndLeaveNothingBehind(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	t.Setenv("FILA_SERVER__LISTEN_ADDR", "nonsense") // Settings of whoever runs the tests.
	first, err := filatest.Start()
	check(t, err)
	second, err := filatest.Start()
	check(t, err)
	if first.Address() == second.Address() {
		t.Fatal("two brokers have one address")
	}
	_, err = newClient(t, first).CreateQueue(t.Context(), "orders")
	check(t, err)
	_, err = newClient(t, second).Stats(t.Context(), "orders", 0)
	if !errors.Is(err, fila.ErrQueueNotFound) {
		t.Fatalf("the other broker says %v", err)
	}
	for _, each := range []*filatest.Broker{first, second, first} {
		check(t, each.Close())
	}
	left, err := os.ReadDir(folder)
	check(t, err)
	if len(left) > 0 {
		t.Fatalf("%s was left behind", left[0].Name())
	}
	if connection, err := net.Dial("tcp", first.Address()); err == nil {
		_ = connection.Close()
		t.Fatal("it listens after it was closed")
	}
}

func TestConfigurationOfTheTestIsInForce(t *testing.T) {
	broker := filatest.New(t, filatest.WithConfig("[limits]\nmax_payload_bytes = 10"))
	client := newClient(t, broker)
	_, err := client.CreateQueue(t.Context(), "orders")
	check(t, err)
	_, err = client.EnqueueText(t.Context(), "orders", nil, "longer than ten bytes")
	if !errors.Is(err, fila.ErrMessageTooLarge) {
		t.Fatalf("a large payload: %v", err)
	}
}

func TestBrokerThatDoesNotStartSaysWhy(t *testing.T) {
	_, err := filatest.Start(filatest.WithConfig("[nonsense]\nx = 1"))
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Fatalf("a configuration that cannot be used: %v", err)
	}
	t.Setenv("FILA_SERVER", "nowhere")
	_, err = filatest.Start()
	if err == nil || !strings.Contains(err.Error(), "pip install fila-server") {
		t.Fatalf("no server: %v", err)
	}
}

func TestBrokerDoesNotOutliveItsTests(t *testing.T) {
	program, err := os.Executable()
	check(t, err)
	tests := exec.Command(program)
	folder := t.TempDir()
	tests.Env = append(os.Environ(), addressWanted+"=yes", "TMPDIR="+folder)
	output, err := tests.StdoutPipe()
	check(t, err)
	check(t, tests.Start())
	address, err := bufio.NewReader(output).ReadString('\n')
	check(t, errors.Join(err, tests.Process.Kill()))
	_ = tests.Wait() // It was killed.
	address = strings.TrimSpace(address)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		connection, err := net.Dial("tcp", address)
		if err != nil && os.RemoveAll(folder) == nil { // Nobody writes there any more.
			return
		}
		if err == nil {
			_ = connection.Close()
		}
		if time.Now().After(deadline) {
			t.Fatalf("the broker at %s is still there", address)
		}
	}
}
