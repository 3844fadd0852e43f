// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuflight/gpuflight/internal/testing/alloctest"
)

// FuzzJournal opens any bytes as a journal. One that was opened can be opened again and says the same.
func FuzzJournal(f *testing.F) {
	header := `{"gpuflight_replay":1,"started_unix_nano":5}` + "\n"
	f.Add([]byte(header + `{"object":"a","version":"1","messages":3}` + "\n" + `{"object":"b","version":"2","done":true}` + "\n"))
	f.Add([]byte(header + `{"object":"a"`))
	f.Add([]byte(header + `{"object":"a","messages":-1}` + "\n"))
	f.Add([]byte("{}"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "journal")
		open := func() (*Journal, error) {
			j, err := OpenJournal(path)
			if err == nil {
				err = j.Close()
			}
			return j, err
		}
		// Two buffers of maxEntry, and a small object for each line.
		alloctest.Limit{PerByte: 1 << 7, Constant: 1 << 19}.Check(t, len(text), func() {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			_, _ = open()
		})
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := open()
		if err != nil {
			return
		}
		again, err := open()
		if err != nil {
			t.Fatalf("it was opened once: %v", err)
		}
		if !j.Started().Equal(again.Started()) || len(j.begun) != len(again.begun) || len(j.done) != len(again.done) {
			t.Fatalf("%d begun and %d done became %d and %d", len(j.begun), len(j.done), len(again.begun), len(again.done))
		}
	})
}
