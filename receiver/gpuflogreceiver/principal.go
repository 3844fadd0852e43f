// SPDX-License-Identifier: Apache-2.0

package gpuflogreceiver

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"hash"
	"net/http"
	"net/netip"

	"go.opentelemetry.io/collector/client"

	"github.com/gpuflight/gpuflight/internal/apikey"
	"github.com/gpuflight/gpuflight/receiver/gpuflogreceiver/internal/ingest"
)

// principal identifies the credentials of a request: a one-way digest, so that no token is kept in
// memory, in the storage or in a log. It is zero if the configuration requires no credentials. All
// requests then have one principal.
type principal = ingest.Principal

// identityAttributes name the subject in the data of the Collector's authenticators: a subject of
// an issuer (oidc), a user name (basicauth), or a key of a project (api_key_auth). They stay the same when a token is renewed or a
// password changes. Other attributes, such as raw, are credentials.
var identityAttributes = [...]string{"issuer", "subject", "username", apikey.AttributeProject}

// principalOf returns the principal of an authenticated request. authenticated means that an
// authenticator has accepted it. bearertokenauth provides no data, so its token itself is the
// identity. A client certificate counts only if it was verified.
func principalOf(r *http.Request, authenticated bool) (p principal) {
	h := sha256.New()
	known := false
	add := func(kind, value string) {
		known = true
		writeString(h, kind)
		writeString(h, value)
	}
	if authenticated {
		add("authenticator", "")
		named := false
		if auth := client.FromContext(r.Context()).Auth; auth != nil {
			for _, name := range identityAttributes {
				if value, ok := auth.GetAttribute(name).(string); ok && value != "" {
					add(name, value)
					named = named || name != apikey.AttributeProject
				}
			}
		}
		if !named {
			add("authorization", r.Header.Get("Authorization"))
		}
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		addCertificate(add, r.TLS.VerifiedChains[0][0])
	}
	if known {
		copy(p[:], h.Sum(nil))
	}
	return p
}

// addCertificate adds the names of a certificate. They stay the same when it is renewed.
func addCertificate(add func(kind, value string), c *x509.Certificate) {
	add("subject", string(c.RawSubject))
	for _, name := range c.DNSNames {
		add("dns", name)
	}
	for _, address := range c.EmailAddresses {
		add("email", address)
	}
	for _, address := range c.IPAddresses {
		add("ip", address.String())
	}
	for _, uri := range c.URIs {
		add("uri", uri.String())
	}
}

// writeString writes a string with its length, so that different lists have different encodings.
func writeString(h hash.Hash, s string) {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	h.Write([]byte(s))
}

// hostOf returns the host of an address: the IPv4 address, or the /64 of an IPv6 address, because
// one host may use all addresses of it. It is invalid for other addresses, such as Unix sockets.
func hostOf(address string) netip.Prefix {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip := a.Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// projectOf returns the project that the authenticator of a client states, or "". The exporter
// gpu_storage stores data under the project of its context.
func projectOf(c client.Info) string {
	if c.Auth == nil {
		return ""
	}
	project, _ := c.Auth.GetAttribute(apikey.AttributeProject).(string)
	return project
}

// project is the client of data that is delivered without a request, or with that of another client.
type project string

// GetAttribute implements [client.AuthData].
func (p project) GetAttribute(name string) any {
	if name == apikey.AttributeProject {
		return string(p)
	}
	return nil
}

// GetAttributeNames implements [client.AuthData].
func (project) GetAttributeNames() []string { return []string{apikey.AttributeProject} }

// withProject returns a context whose client has a project.
func withProject(ctx context.Context, name string) context.Context {
	info := client.FromContext(ctx)
	if projectOf(info) == name {
		return ctx
	}
	return client.NewContext(ctx, client.Info{Auth: project(name)})
}
