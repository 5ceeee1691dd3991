// SPDX-License-Identifier: AGPL-3.0-only

// Certificates that change, and that come from memory. They are made here, because tests of names
// and of rotation need some that differ.

package fila_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	fila "github.com/faiscadev/fila/sdks/go"
)

// authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: t.Name()},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	check(t, err)
	certificate, err := x509.ParseCertificate(raw)
	check(t, err)
	return &authority{certificate, key, encoded("CERTIFICATE", raw)}
}

func encoded(kind string, raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
}

// issue makes a certificate for these names, and its key.
func (a *authority) issue(t *testing.T, names ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
		},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	check(t, err)
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	check(t, err)
	return encoded("CERTIFICATE", raw), encoded("PRIVATE KEY", rawKey)
}

// serving is the server's side: a certificate for these names, and clients that prove themselves.
func (a *authority) serving(t *testing.T, names ...string) grpc.ServerOption {
	t.Helper()
	pair, err := tls.X509KeyPair(a.issue(t, names...))
	check(t, err)
	clients := x509.NewCertPool()
	clients.AddCert(a.certificate)
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientCAs:    clients, ClientAuth: tls.RequireAndVerifyClientCert,
	}))
}

func TestTLSFromMemory(t *testing.T) {
	issuer := newAuthority(t)
	b := startBroker(t, issuer.serving(t, "127.0.0.1"))
	cert, key := issuer.issue(t)
	client := newClient(t, b.target, fila.WithTLS(fila.TLSOptions{
		CA: issuer.pem, Cert: cert, Key: key,
	}))
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	anonymous := newClient(t, b.target, fila.WithTLS(fila.TLSOptions{CA: issuer.pem}))
	wantKind(t, anonymous.Ack(t.Context(), "orders", "m", ""), fila.ErrUnavailable)
}

func TestFilesAreReadAgainForEveryConnection(t *testing.T) {
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	write := func(name string, content []byte) {
		check(t, os.WriteFile(path(name), content, 0o600))
	}
	first, second := newAuthority(t), newAuthority(t)
	cert, key := first.issue(t)
	write("ca", first.pem)
	write("cert", cert)
	write("key", key)
	b := startBroker(t, first.serving(t, "127.0.0.1"))
	client := newClient(t, b.target, quick, fila.WithTLS(fila.TLSOptions{
		CAFile: path("ca"), CertFile: path("cert"), KeyFile: path("key"),
	}))
	ack := func() error { return client.Ack(t.Context(), "orders", "m", "") }
	check(t, ack())
	b.stop()
	b = startBrokerAt(t, b.target, frames(), second.serving(t, "127.0.0.1"))
	refused := func(why string) {
		t.Helper()
		eventually(t, "it is refused: "+why, func() bool {
			err := ack()
			if err == nil {
				t.Fatal("an old certificate was taken")
			}
			return errors.Is(err, fila.ErrUnavailable) && strings.Contains(err.Error(), why)
		})
	}
	refused("certificate")
	cert, key = second.issue(t)
	write("ca", second.pem)
	write("cert", cert)
	refused("cannot be used") // Of the pair only one is there yet.
	write("key", key)
	eventually(t, "the files are taken", func() bool { return ack() == nil })
	equal(t, "acks of the second broker", len(b.seenOf("AckBatch")) > 0, true)
}

func TestTLSConfigOfTheApplication(t *testing.T) {
	issuer := newAuthority(t)
	b := startBroker(t, issuer.serving(t, "broker.example"))
	roots := x509.NewCertPool()
	roots.AddCert(issuer.certificate)
	var asked atomic.Int32
	client := newClient(t, b.target, fila.WithTLSConfig(&tls.Config{
		RootCAs: roots, ServerName: "broker.example",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked.Add(1)
			pair, err := tls.X509KeyPair(issuer.issue(t))
			return &pair, err
		},
	}))
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	equal(t, "certificates asked for", asked.Load() > 0, true)
}

func TestEachOfSeveralBrokersIsHeldToItsOwnName(t *testing.T) {
	issuer := newAuthority(t)
	cert, key := issuer.issue(t)
	own := fila.TLSOptions{CA: issuer.pem, Cert: cert, Key: key}
	byName := startBroker(t, issuer.serving(t, "localhost"))
	_, port, err := net.SplitHostPort(byName.target)
	check(t, err)
	nobody := freeAddress(t)
	client := newClient(t, nobody+",localhost:"+port, fila.WithTLS(own))
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	// The same broker by another name than that of its certificate.
	client = newClient(t, nobody+","+byName.target, fila.WithTLS(own))
	err = client.Ack(t.Context(), "orders", "m", "")
	wantKind(t, err, fila.ErrUnavailable)
	own.ServerName = "localhost"
	client = newClient(t, nobody+","+byName.target, fila.WithTLS(own))
	check(t, client.Ack(t.Context(), "orders", "m", ""))
}
