// SPDX-License-Identifier: AGPL-3.0-only

// Where brokers are: the target of a client, which is one address or the members of a cluster. Of
// several the first that answers is used; after its loss they are tried again, in order.

package fila

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// schemes are those of gRPC's resolvers; other targets are host:port.
var schemes = []string{"dns:", "passthrough:", "unix:", "unix-abstract:"}

// members is the scheme of targets with several addresses.
const members = "fila-members"

// located is a target as gRPC takes it, with what that needs. A server name is that of all members.
func located(target, serverName string) (string, []grpc.DialOption, error) {
	addresses := strings.Split(target, ",")
	for i, each := range addresses {
		addresses[i] = strings.TrimSpace(each)
		if err := checkAddress(addresses[i], len(addresses) == 1); err != nil {
			return "", nil, err
		}
	}
	if len(addresses) == 1 {
		return addresses[0], nil, nil
	}
	var state resolver.State
	for _, each := range addresses {
		host, _, err := net.SplitHostPort(each)
		if err != nil {
			return "", nil, fmt.Errorf("target %q is not host:port: %w", each, err)
		}
		// Names are looked up for each connection. TLS holds each member to its own.
		address := resolver.Address{Addr: each}
		if serverName == "" {
			address.ServerName = host
		}
		endpoint := resolver.Endpoint{Addresses: []resolver.Address{address}}
		state.Endpoints = append(state.Endpoints, endpoint)
	}
	fixed := manual.NewBuilderWithScheme(members)
	fixed.InitialState(state)
	return members + ":///" + addresses[0], []grpc.DialOption{grpc.WithResolvers(fixed)}, nil
}

func checkAddress(address string, isAlone bool) error {
	for _, scheme := range schemes {
		if strings.HasPrefix(address, scheme) {
			if isAlone {
				return nil
			}
			return fmt.Errorf("target %q cannot be one of several, only host:port can", address)
		}
	}
	// Without a port gRPC would quietly take 443, and a URL's scheme for a name to resolve.
	at := strings.LastIndex(address, ":")
	host, port := address[:max(at, 0)], address[at+1:]
	number, err := strconv.ParseUint(port, 10, 16)
	isHost := host != "" && !strings.Contains(host, "/") &&
		(!strings.Contains(host, ":") || strings.HasPrefix(host, "["))
	if !isHost || err != nil || number == 0 {
		return fmt.Errorf("target %q is not host:port, for example %q", address, DefaultTarget)
	}
	return nil
}
