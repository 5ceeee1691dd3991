// SPDX-License-Identifier: AGPL-3.0-only

// Package filatest starts a real broker for tests: fila-server in a directory of its own, on a free
// port of the loopback interface. It needs fila-server, from PATH or as FILA_SERVER names it.
//
//	func TestOrders(t *testing.T) {
//		broker := filatest.New(t)
//		client, err := fila.NewClient(broker.Address())
//		...
//	}
//
// A start takes about a second, so a package with many tests has one broker and a queue per test:
//
//	func TestMain(m *testing.M) {
//		broker, err := filatest.Start()
//		if err != nil {
//			log.Fatal(err)
//		}
//		address = broker.Address()
//		code := m.Run()
//		broker.Close()
//		os.Exit(code)
//	}
package filatest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// A second as a rule; machines that build and test have better things to do.
	startTimeout = time.Minute
	// What is under way is finished first.
	stopTimeout = 20 * time.Second
	// Enough of what it wrote to say why it did not start.
	lastWordsBytes = 4 << 10

	readyPrefix = "FILA READY "
)

type settings struct {
	config string
}

// Option is a choice about a broker, for New and Start.
type Option func(*settings)

// WithConfig adds to the broker's configuration file, which is TOML:
// WithConfig("[limits]\nmax_payload_bytes = 1000\n").
func WithConfig(toml string) Option {
	return func(s *settings) { s.config += toml + "\n" }
}

// Broker is a broker that runs until Close. It does not outlive the process that started it,
// however that ends.
type Broker struct {
	address string
	folder  string
	process *exec.Cmd
	// input is the broker's standard input: it stops when that ends.
	input io.Closer
	words *tail
	// exited is closed when it has ended, with failure.
	exited  chan struct{}
	failure error

	closing sync.Once
	closed  error
}

// New starts a broker for a test, and stops it when that has ended. A broker that does not start
// fails the test.
func New(tb testing.TB, options ...Option) *Broker {
	tb.Helper()
	broker, err := Start(options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := broker.Close(); err != nil {
			tb.Error(err)
		}
	})
	return broker
}

// Start starts a broker and returns when it is ready. It is for TestMain, which has to Close it;
// tests use New. Fails where there is no fila-server, and when it did not start, with what it said.
func Start(options ...Option) (*Broker, error) {
	var chosen settings
	for _, option := range options {
		option(&chosen)
	}
	program, err := findServer()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "filatest-")
	if err != nil {
		return nil, fmt.Errorf("no directory for the broker: %w", err)
	}
	b := &Broker{folder: folder, words: &tail{}, exited: make(chan struct{})}
	if err := b.start(program, chosen); err != nil {
		_ = os.RemoveAll(folder)
		return nil, fmt.Errorf("the broker did not start: %w", err)
	}
	return b, nil
}

func findServer() (string, error) {
	name := os.Getenv("FILA_SERVER")
	if name == "" {
		name = "fila-server"
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("there is no fila-server: %w; install one with "+
			"`pip install fila-server`, or have FILA_SERVER name it", err)
	}
	return program, nil
}

// start runs the program and waits until it is ready. What it fails with, nothing runs.
func (b *Broker) start(program string, chosen settings) error {
	config := filepath.Join(b.folder, "fila.toml")
	if err := os.WriteFile(config, []byte(chosen.config), 0o600); err != nil {
		return err
	}
	b.process = exec.Command(program, "--config", config, "--listen", "127.0.0.1:0",
		"--data-dir", filepath.Join(b.folder, "data"), "--stop-at-eof")
	// Its settings are those of the test, not of whoever runs it.
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "FILA_") {
			b.process.Env = append(b.process.Env, entry)
		}
	}
	b.process.Stderr = b.words
	input, err := b.process.StdinPipe()
	if err != nil {
		return err
	}
	b.input = input
	output, err := b.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := b.process.Start(); err != nil {
		return err
	}
	ready := make(chan string, 1)
	go b.follow(output, ready)
	select {
	case b.address = <-ready:
		return nil
	case <-b.exited:
		return fmt.Errorf("%w: %s", b.failure, b.words)
	case <-time.After(startTimeout):
		b.stop()
		return fmt.Errorf("it was not ready within %v: %s", startTimeout, b.words)
	}
}

// follow reads what the broker prints until it has ended.
func (b *Broker) follow(output io.Reader, ready chan<- string) {
	defer close(b.exited)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		report, isReady := strings.CutPrefix(lines.Text(), readyPrefix)
		var where struct {
			Address string `json:"address"`
		}
		if isReady && json.Unmarshal([]byte(report), &where) == nil {
			ready <- where.Address
			break
		}
	}
	_, _ = io.Copy(io.Discard, output) // It ends with the broker, whose failure comes next.
	if b.failure = b.process.Wait(); b.failure == nil {
		b.failure = errors.New("it ended")
	}
}

// Address is where the broker listens, as fila.NewClient takes it.
func (b *Broker) Address() string { return b.address }

// Close stops the broker and removes what it has stored. Harmless twice. Fails when the broker did
// not end well.
func (b *Broker) Close() error {
	b.closing.Do(func() {
		b.stop()
		b.closed = os.RemoveAll(b.folder)
		if state := b.process.ProcessState; !state.Success() {
			b.closed = fmt.Errorf("the broker did not end well, %s: %s", state, b.words)
		}
	})
	return b.closed
}

// stop ends the broker's input, and then the broker if that was not enough.
func (b *Broker) stop() {
	_ = b.input.Close() // It fails only when it is closed already.
	select {
	case <-b.exited:
	case <-time.After(stopTimeout):
		_ = b.process.Process.Kill() // It fails only when the broker has ended meanwhile.
		<-b.exited
	}
}

// tail keeps the end of what is written.
type tail struct {
	lock  sync.Mutex
	bytes []byte
}

func (t *tail) Write(more []byte) (int, error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.bytes = append(t.bytes, more...)
	t.bytes = t.bytes[max(0, len(t.bytes)-lastWordsBytes):]
	return len(more), nil
}

func (t *tail) String() string {
	t.lock.Lock()
	defer t.lock.Unlock()
	return strings.TrimSpace(string(t.bytes))
}
