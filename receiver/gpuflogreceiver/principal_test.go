// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/client"
)

// authData is what an authenticator says of a client.
type authData map[string]any

func (a authData) GetAttribute(name string) any { return a[name] }

func (a authData) GetAttributeNames() []string { return nil }

func TestPrincipalOf(t *testing.T) {
	of := func(authenticated bool, authorization string, auth client.AuthData, chains ...[]*x509.Certificate) principal {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", authorization)
		r.TLS = &tls.ConnectionState{VerifiedChains: chains}
		return principalOf(r.WithContext(client.NewContext(r.Context(), client.Info{Auth: auth})), authenticated)
	}
	cert := func(name string) []*x509.Certificate {
		return []*x509.Certificate{{RawSubject: []byte(name), Subject: pkix.Name{CommonName: name}}}
	}
	assert.Zero(t, of(false, "Bearer a", nil), "nobody has checked the header")
	assert.NotZero(t, of(true, "", nil), "accepted, though not by this header")
	same := map[string][2]principal{
		"token":            {of(true, "Bearer a", nil), of(true, "Bearer a", nil)},
		"renewed password": {of(true, "Basic 1", authData{"username": "u", "raw": "1"}), of(true, "Basic 2", authData{"username": "u", "raw": "2"})},
		"renewed token":    {of(true, "Bearer 1", authData{"subject": "u", "raw": "1"}), of(true, "Bearer 2", authData{"subject": "u", "raw": "2"})},
		"certificate":      {of(false, "Bearer a", nil, cert("n")), of(false, "Bearer b", nil, cert("n"))},
	}
	for name, p := range same {
		assert.Equal(t, p[0], p[1], name)
	}
	different := map[string]principal{
		"nobody": {}, "token a": of(true, "Bearer a", nil), "token b": of(true, "Bearer b", nil), "no header": of(true, "", nil),
		"user": of(true, "Basic 1", authData{"username": "u"}), "another user": of(true, "Basic 1", authData{"username": "v"}),
		"subject": of(true, "Bearer 1", authData{"subject": "u"}), "another issuer's": of(true, "Bearer 1", authData{"subject": "u", "issuer": "i"}),
		"certificate": of(false, "", nil, cert("n")), "another certificate": of(false, "", nil, cert("m")),
		"token and certificate": of(true, "Bearer a", nil, cert("n")),
	}
	seen := map[principal]string{}
	for name, p := range different {
		assert.NotContains(t, seen, p, "%s is %s", name, seen[p])
		seen[p] = name
	}
}

func TestHostOf(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7:80": "192.0.2.7/32", "[::ffff:192.0.2.7]:80": "192.0.2.7/32", "[2001:db8::1:2:3:4]:80": "2001:db8::/64",
		"[fe80::1%eth0]:80": "fe80::/64", "@": "invalid Prefix", "": "invalid Prefix",
	} {
		assert.Equal(t, want, hostOf(address).String(), address)
	}
}
