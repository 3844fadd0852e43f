// SPDX-License-Identifier: Apache-2.0

package gpuflog

import (
	"github.com/cespare/xxhash/v2"

	"github.com/gpuflight/gpuflight/internal/gpuevent"
)

// uids derives the ids of the log records of one line: from the session, the line's bytes and the
// position of the record in the line. A line that is read again, from whichever source, gives the
// same ids. Lines of samples differ at least in their batch or their time.
type uids struct {
	line    []byte
	hash, n uint64
}

// next returns the id of the line's next record. It hashes the line at the first call, because most
// lines give no log record.
func (u *uids) next(k gpuevent.SessionKey) gpuevent.UID {
	if u.n == 0 {
		u.hash = xxhash.Sum64(u.line)
	}
	u.n++
	return k.UID(u.hash, u.n)
}
