// SPDX-License-Identifier: AGPL-3.0-only

// How connections are encrypted: certificates from files or memory. Files are read again for every
// connection that is made, so that a certificate is rotated by replacing its files.

package fila

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TLSOptions encrypts the connection; with a certificate and its key the client proves itself too
// (mTLS). Each of the three is a file or PEM in memory, not both. Files are read by NewClient,
// which fails where they cannot be used, and again for every connection that is made: replace them
// to rotate a certificate.
type TLSOptions struct {
	// CAFile, or CA, holds the certificates to trust; without either the system's roots are.
	CAFile string
	CA     []byte
	// CertFile, or Cert, and KeyFile, or Key, are the client's own; both or neither.
	CertFile string
	Cert     []byte
	KeyFile  string
	Key      []byte
	// ServerName is the name to expect in the broker's certificate if it is not the target's host.
	ServerName string
}

// config is what the options say now.
func (o TLSOptions) config() (*tls.Config, error) {
	config := &tls.Config{ServerName: o.ServerName, MinVersion: tls.VersionTLS12}
	ca, err := readPEM("ca", o.CAFile, o.CA)
	if err != nil {
		return nil, err
	}
	if ca != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("tls ca%s holds no certificate in PEM", source(o.CAFile))
		}
	}
	cert, err := readPEM("cert", o.CertFile, o.Cert)
	if err != nil {
		return nil, err
	}
	key, err := readPEM("key", o.KeyFile, o.Key)
	if err != nil {
		return nil, err
	}
	if (cert == nil) != (key == nil) {
		return nil, errors.New("tls cert and key go together; give both or neither")
	}
	if cert == nil {
		return config, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("tls cert%s and key%s cannot be used: %w",
			source(o.CertFile), source(o.KeyFile), err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// source is the file that something came from, for errors; nothing where it was in memory.
func source(path string) string {
	if path == "" {
		return ""
	}
	return fmt.Sprintf(" file %q", path)
}

// readPEM is what a file holds, or what was given instead; nil without either.
func readPEM(option, path string, given []byte) ([]byte, error) {
	if path == "" {
		return given, nil
	}
	if given != nil {
		return nil, fmt.Errorf("tls %s is given as file %q and in memory; give one", option, path)
	}
	content, err := os.ReadFile(path)
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("cannot read tls %s file %q: %w", option, path, failed.Err)
	}
	return content, err
}

// transport is how a client's connections are secured, and what gRPC shows to the policy that
// watches them: it tells whose they are.
type transport struct {
	credentials.TransportCredentials
	watch *watch
	// files is nil where nothing is read again.
	files *TLSOptions
}

func newTransport(chosen settings, w *watch) (*transport, error) {
	if chosen.tlsConfig != nil {
		return &transport{credentials.NewTLS(chosen.tlsConfig), w, nil}, nil
	}
	if chosen.tls == nil {
		return &transport{insecure.NewCredentials(), w, nil}, nil
	}
	config, err := chosen.tls.config()
	if err != nil {
		return nil, err
	}
	return &transport{credentials.NewTLS(config), w, chosen.tls}, nil
}

// ClientHandshake is called for every connection. Files that cannot be used just then, because one
// of a pair was replaced and the other one was not yet, fail that attempt alone.
func (t *transport) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	if t.files == nil {
		return t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	}
	config, err := t.files.config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// Clone is called by gRPC for each of its uses.
func (t *transport) Clone() credentials.TransportCredentials {
	return &transport{t.TransportCredentials.Clone(), t.watch, t.files}
}
