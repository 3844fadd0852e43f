// SPDX-License-Identifier: Apache-2.0

// Package apikey has the API keys of the Collector: it makes and checks them, and reads and edits
// the file that lists them.
//
// A key is gpfl_<id>_<secret>: the prefix makes keys easy to find in code and logs, the id names the
// key, and the secret has 256 random bits. The file has only the SHA-256 of a key. A fast hash is
// enough for a secret that nobody can guess.
package apikey

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Scope is what a key permits.
type Scope string

// The scopes. Admin includes read.
const (
	Read   Scope = "read"   // query and export sessions
	Ingest Scope = "ingest" // send telemetry
	Admin  Scope = "admin"  // read, and pin, delete and import sessions
)

// ParseScope returns the scope with a name.
func ParseScope(name string) (Scope, error) {
	switch s := Scope(name); s {
	case Read, Ingest, Admin:
		return s, nil
	}
	return "", fmt.Errorf("scope %q is unknown: use read, ingest or admin", name)
}

// Names of the attributes with which an authenticator describes the key of a request
// (client.AuthData of the Collector).
const (
	AttributeProject = "project" // string
	AttributeSubject = "subject" // string, the name of the key
	AttributeID      = "key"     // string
	AttributeScopes  = "scopes"  // []string
)

// Authenticator is an authenticator that checks scopes. Requests without the scope get [ErrScope].
type Authenticator interface {
	AuthenticateScope(ctx context.Context, scope Scope, headers map[string][]string) (context.Context, error)
}

// Reasons why a request has no access.
var (
	ErrMissing = errors.New("the request has no key: send the header Authorization: Bearer KEY")
	ErrInvalid = errors.New("the key is not valid")
	ErrExpired = errors.New("the key has expired")
	ErrScope   = errors.New("the key does not have the required scope")
)

// Key is an entry of the key file.
type Key struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Project is the only project that the key gives access to. The default project is "".
	Project string    `json:"project,omitempty"`
	Scopes  []Scope   `json:"scopes"`
	Created time.Time `json:"created"`
	// Expires is zero for a key that does not expire.
	Expires time.Time `json:"expires,omitzero"`
	// SHA256 is the hash of the whole key, in hexadecimal digits.
	SHA256 string `json:"sha256"`
}

const (
	prefix    = "gpfl_"
	idLength  = 8
	keyLength = len(prefix) + idLength + 1 + 43 // base64 of 32 bytes
	maxName   = 100
)

// letters has 32 letters and digits. It omits those that look alike.
const letters = "abcdefghijkmnpqrstuvwxyz23456789"

// New returns a key with a new id, and its text, which must be shown to the user and not stored. A
// zero expiry means that the key does not expire.
func New(name, project string, scopes []Scope, now, expires time.Time) (Key, string, error) {
	var random [idLength + 32]byte
	_, _ = rand.Read(random[:]) // It never returns an error.
	id := make([]byte, idLength)
	for i := range id {
		id[i] = letters[random[i]%32]
	}
	text := prefix + string(id) + "_" + base64.RawURLEncoding.EncodeToString(random[idLength:])
	k := Key{
		ID: string(id), Name: name, Project: project, Scopes: scopes,
		Created: now.UTC().Truncate(time.Second), Expires: expires.UTC().Truncate(time.Second), SHA256: hash(text),
	}
	if expires.IsZero() {
		k.Expires = time.Time{}
	}
	return k, text, k.validate()
}

// ID returns the id of a text that has the form of a key, otherwise "".
func ID(text string) string {
	if len(text) != keyLength || !strings.HasPrefix(text, prefix) || text[len(prefix)+idLength] != '_' {
		return ""
	}
	id := text[len(prefix) : len(prefix)+idLength]
	if strings.Trim(id, letters) != "" {
		return ""
	}
	return id
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// is reports in constant time whether a text is the key.
func (k *Key) is(text string) bool {
	return subtle.ConstantTimeCompare([]byte(hash(text)), []byte(k.SHA256)) == 1
}

// Allows reports whether the key has a scope.
func (k *Key) Allows(s Scope) bool {
	return slices.Contains(k.Scopes, s) || s == Read && slices.Contains(k.Scopes, Admin)
}

// Expired reports whether the key has expired.
func (k *Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// validate checks a key of a user or a file.
func (k *Key) validate() error {
	if sum, err := hex.DecodeString(k.SHA256); err != nil || len(sum) != sha256.Size {
		return errors.New("sha256 is not a SHA-256 in hexadecimal digits")
	}
	if len(k.ID) != idLength || strings.Trim(k.ID, letters) != "" {
		return fmt.Errorf("id %.20q is not valid", k.ID)
	}
	if k.Name == "" || len(k.Name) > maxName || strings.ContainsFunc(k.Name, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return fmt.Errorf("name %.120q is not valid: use 1 to %d characters", k.Name, maxName)
	}
	if err := checkProject(k.Project); err != nil {
		return err
	}
	if len(k.Scopes) == 0 {
		return errors.New("the key has no scope: use read, ingest or admin")
	}
	for _, s := range k.Scopes {
		if _, err := ParseScope(string(s)); err != nil {
			return err
		}
	}
	return nil
}

// checkProject allows names that are also names of folders.
func checkProject(name string) error {
	if len(name) > 64 || strings.HasPrefix(name, ".") || strings.ContainsFunc(name, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	}) {
		return fmt.Errorf("project %.80q is not valid: use at most 64 of a-z, 0-9, dot, dash and underscore", name)
	}
	return nil
}
