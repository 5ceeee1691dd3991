// SPDX-License-Identifier: AGPL-3.0-only

// Command go is the Go client process of the peers benchmark. It takes a workload as JSON, says
// READY when it is connected, begins when it reads a line, and prints one JSON object of results,
// as bench/peers/driver.py does.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"
)

// spec is a workload: what to do, to whom, how much of it.
type spec struct {
	What        string  `json:"what"`
	Peer        string  `json:"peer"`
	Address     string  `json:"address"`
	Queue       string  `json:"queue"`
	Messages    int     `json:"messages"`
	Bytes       int     `json:"bytes"`
	Window      int     `json:"window"`
	Connections int     `json:"connections"`
	Keys        int     `json:"keys"`
	Rate        float64 `json:"rate"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var chosen spec
	if err := json.Unmarshal([]byte(os.Args[1]), &chosen); err != nil {
		return fmt.Errorf("the workload is not JSON: %w", err)
	}
	dial, ok := peers[chosen.Peer]
	if !ok {
		return fmt.Errorf("there is no peer %q", chosen.Peer)
	}
	clients := make([]client, max(1, chosen.Connections))
	for i := range clients {
		connected, err := dial(chosen)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", chosen.Peer, err)
		}
		defer connected.close()
		clients[i] = connected
	}
	fmt.Println("READY")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	began := cpu()
	workload := lifecycle
	if chosen.What == "latency" {
		workload = latency
	}
	result, err := workload(chosen, clients)
	if err != nil {
		return err
	}
	result["client_cpu_s"] = (cpu() - began).Seconds()
	return json.NewEncoder(os.Stdout).Encode(result)
}

// cpu is the processor time that this process has used.
func cpu() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err) // the kernel knows RUSAGE_SELF
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
