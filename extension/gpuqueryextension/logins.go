// SPDX-License-Identifier: Apache-2.0

package gpuqueryextension

import (
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"
)

const (
	loginTime = 12 * time.Hour
	maxLogins = 1000
)

// logins are the browsers that have sent a key. Each request checks the key again, so a login ends
// with its key. Logins are in memory: they end with the process. It is safe for concurrent use.
type logins struct {
	now func() time.Time
	mu  sync.Mutex
	// all is by the hash of the token, so that no comparison depends on the token.
	all map[[sha256.Size]byte]login
}

type login struct {
	header string // Authorization
	ends   time.Time
}

func newLogins(now func() time.Time) *logins {
	return &logins{now: now, all: map[[sha256.Size]byte]login{}}
}

// add returns the token of a new login. It evicts the oldest one above maxLogins.
func (l *logins) add(header string) (token string) {
	token = rand.Text() + rand.Text() // 260 bits
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	var first [sha256.Size]byte
	var ends time.Time
	for hash, e := range l.all {
		if !now.Before(e.ends) {
			delete(l.all, hash)
		} else if ends.IsZero() || e.ends.Before(ends) {
			first, ends = hash, e.ends
		}
	}
	if len(l.all) >= maxLogins {
		delete(l.all, first)
	}
	l.all[sha256.Sum256([]byte(token))] = login{header, now.Add(loginTime)}
	return token
}

// find returns the header that a token stands for.
func (l *logins) find(token string) (header string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.all[sha256.Sum256([]byte(token))]
	if !ok || !l.now().Before(e.ends) {
		return "", false
	}
	return e.header, true
}

// remove ends a login and reports whether there was one.
func (l *logins) remove(token string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	hash := sha256.Sum256([]byte(token))
	_, ok := l.all[hash]
	delete(l.all, hash)
	return ok
}
