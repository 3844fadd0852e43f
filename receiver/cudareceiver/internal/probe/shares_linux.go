// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package probe

import (
	"maps"
	"sync"
	"time"
)

// shareWindow is the interval over which shares are counted, and the usual collection interval.
const shareWindow = 10 * time.Second

// The limits of files, bytes and time for other users' files in shareWindow, of one user and of
// all. A user with 100 processes of PyTorch needs 400 files and 0.2 s.
const (
	userFiles, totalFiles = 512, 4096
	userBytes, totalBytes = 2 * maxFileReads, 8 * maxFileReads
	userTime, totalTime   = time.Second, 5 * time.Second
)

// The limits of descriptors for attachments, of one user and of all. A driver takes about 20, NCCL
// and libcudart about 5. Before Linux 6.6 each function takes two.
const (
	userDescriptors, totalDescriptors = 128, 320
	singleProbes                      = 32 // times as many without links for many functions
)

// maxRejected bounds the stored rejected files of all users.
const maxRejected = 8192

// skipLogInterval is the minimum time between two calls of Options.Skipped for one reason.
const skipLogInterval = 10 * time.Minute

type share struct {
	files int
	bytes int64
	time  time.Duration
}

// shares counts the resources for other users' files, and the skipped files. It is safe for
// concurrent use.
type shares struct {
	log func(Skip)

	mu       sync.Mutex
	began    time.Time // of the window
	users    map[tenant]*share
	total    share
	exceeded bool // by any user, or in all
	skipped  map[string]uint64
	logged   map[string]time.Time
}

func newShares(log func(Skip)) *shares {
	return &shares{log: log, users: map[tenant]*share{}, skipped: map[string]uint64{}, logged: map[string]time.Time{}}
}

// current starts a new interval if the last one has ended. The caller holds s.mu.
func (s *shares) current(o tenant) *share {
	if now := time.Now(); now.Sub(s.began) >= shareWindow {
		s.began, s.total, s.exceeded = now, share{}, false
		clear(s.users)
	}
	u := s.users[o]
	if u == nil {
		u = &share{}
		s.users[o] = u
	}
	return u
}

// files reserves up to n files of a user's share. It returns the reserved number, and a reason if
// it is smaller.
func (s *shares) files(o tenant, n int) (got int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.current(o)
	got = max(0, min(n, userFiles-u.files, totalFiles-s.total.files))
	u.files += got
	s.total.files += got
	if got < n {
		s.exceeded = true
		if u.files >= userFiles {
			return got, SkipUserShare
		}
		return got, SkipTotalShare
	}
	return got, ""
}

// spend adds time and bytes to a user's share.
func (s *shares) spend(o tenant, d time.Duration, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, to := range []*share{s.current(o), &s.total} {
		to.time += d
		to.bytes += bytes
	}
	_, over := s.over(o)
	s.exceeded = s.exceeded || over
}

// over returns why a user's share is exhausted. The caller holds s.mu.
func (s *shares) over(o tenant) (reason string, over bool) {
	switch u := s.current(o); {
	case u.time >= userTime || u.bytes >= userBytes || u.files >= userFiles:
		return SkipUserShare, true
	case s.total.time >= totalTime || s.total.bytes >= totalBytes || s.total.files >= totalFiles:
		return SkipTotalShare, true
	}
	return "", false
}

// exhausted is over, but determines the user only if any share is exhausted.
func (s *shares) exhausted(who func() tenant) (o tenant, reason string, over bool) {
	s.mu.Lock()
	exceeded := s.exceeded && time.Since(s.began) < shareWindow
	s.mu.Unlock()
	if !exceeded {
		return tenant{}, "", false
	}
	o = who()
	s.mu.Lock()
	defer s.mu.Unlock()
	reason, over = s.over(o)
	return o, reason, over
}

// skip counts n skipped files, and logs the first of each interval.
func (s *shares) skip(n int, k Skip) {
	s.mu.Lock()
	s.skipped[k.Reason] += uint64(n)
	last, had := s.logged[k.Reason]
	now := time.Now()
	log := s.log != nil && (!had || now.Sub(last) >= skipLogInterval)
	if log {
		s.logged[k.Reason] = now
	}
	s.mu.Unlock()
	if log {
		s.log(k)
	}
}

// counts returns the skipped files by reason.
func (s *shares) counts() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.skipped)
}
