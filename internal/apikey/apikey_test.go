// SPDX-License-Identifier: Apache-2.0

package apikey

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var day = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

// add adds a key to a file and returns its text.
func add(t testing.TB, path, name string, expires time.Time, scopes ...Scope) string {
	k, text, err := New(name, "", scopes, day, expires)
	require.NoError(t, err)
	require.NoError(t, Edit(path, func(keys []Key) ([]Key, error) { return append(keys, k), nil }))
	return text
}

func revoke(t testing.TB, path, id string) {
	require.NoError(t, Edit(path, func(keys []Key) (left []Key, _ error) {
		for _, k := range keys {
			if k.ID != id {
				left = append(left, k)
			}
		}
		return left, nil
	}))
}

func TestNew(t *testing.T) {
	k, text, err := New("ci", "team-a", []Scope{Ingest}, day, day.Add(time.Hour))
	require.NoError(t, err)
	assert.Regexp(t, `^gpfl_[a-km-np-z2-9]{8}_[A-Za-z0-9_-]{43}$`, text)
	assert.Equal(t, k.ID, ID(text))
	sum := sha256.Sum256([]byte(text))
	assert.Equal(t, hex.EncodeToString(sum[:]), k.SHA256)
	b, err := json.Marshal(k)
	require.NoError(t, err)
	assert.NotContains(t, string(b), text[len(prefix)+idLength+1:], "the secret is not stored")

	other, text2, err := New("ci", "team-a", []Scope{Ingest}, day, time.Time{})
	require.NoError(t, err)
	assert.NotEqual(t, text, text2)
	assert.NotEqual(t, k.ID, other.ID)
	assert.True(t, other.Expires.IsZero())
}

func TestNew_Invalid(t *testing.T) {
	for _, tt := range []struct {
		what, name, project string
		scopes              []Scope
		want                string
	}{
		{"no name", "", "", []Scope{Read}, `name "" is not valid: use 1 to 100 characters`},
		{"line feed in name", "a\nb", "", []Scope{Read}, `name "a\nb" is not valid: use 1 to 100 characters`},
		{"no scope", "ci", "", nil, "the key has no scope: use read, ingest or admin"},
		{"unknown scope", "ci", "", []Scope{"write"}, `scope "write" is unknown: use read, ingest or admin`},
		{"path as project", "ci", "../a", []Scope{Read}, `project "../a" is not valid: use at most 64 of a-z, 0-9, dot, dash and underscore`},
		{"parent folder as project", "ci", "..", []Scope{Read}, `project ".." is not valid: use at most 64 of a-z, 0-9, dot, dash and underscore`},
	} {
		t.Run(tt.what, func(t *testing.T) {
			_, _, err := New(tt.name, tt.project, tt.scopes, day, time.Time{})
			require.EqualError(t, err, tt.want)
		})
	}
}

func TestKeys_Check(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	reader := add(t, path, "reader", time.Time{}, Read)
	admin := add(t, path, "admin", time.Time{}, Admin)
	expiring := add(t, path, "expiring", day.Add(time.Hour), Ingest)
	now := day
	keys, err := Open(path, func() time.Time { return now }, func([]string, []string, error) { t.Error("the file did not change") })
	require.NoError(t, err)
	wrong := reader[:len(reader)-1] + "A"
	if wrong == reader {
		wrong = reader[:len(reader)-1] + "B"
	}
	for _, tt := range []struct {
		what, text string
		scope      Scope
		want       error
		name       string
	}{
		{"read", reader, Read, nil, "reader"},
		{"admin includes read", admin, Read, nil, "admin"},
		{"admin", admin, Admin, nil, "admin"},
		{"ingest", expiring, Ingest, nil, "expiring"},
		{"read is not admin", reader, Admin, ErrScope, "reader"},
		{"read is not ingest", reader, Ingest, ErrScope, "reader"},
		{"admin is not ingest", admin, Ingest, ErrScope, "admin"},
		{"ingest is not read", expiring, Read, ErrScope, "expiring"},
		{"none", "", Read, ErrMissing, ""},
		{"wrong secret", wrong, Read, ErrInvalid, ""},
		{"id of another key", prefix + ID(admin) + reader[len(prefix)+idLength:], Read, ErrInvalid, ""},
		{"truncated", reader[:len(reader)-1], Read, ErrInvalid, ""},
		{"longer", reader + "A", Read, ErrInvalid, ""},
		{"no prefix", strings.Replace(reader, "gpfl_", "gpfx_", 1), Read, ErrInvalid, ""},
		{"hash instead of the key", keys.keys[ID(reader)].SHA256, Read, ErrInvalid, ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			k, err := keys.Check(tt.text, tt.scope)
			require.ErrorIs(t, err, tt.want)
			if tt.name == "" {
				assert.Nil(t, k)
				return
			}
			assert.Equal(t, tt.name, k.Name)
		})
	}
	now = day.Add(time.Hour)
	_, err = keys.Check(expiring, Ingest)
	assert.ErrorIs(t, err, ErrExpired)
	_, err = keys.Check(reader, Read)
	assert.NoError(t, err)
}

func TestKeys_Reload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	first := add(t, path, "first", time.Time{}, Read)
	var changes []string
	keys, err := Open(path, time.Now, func(added, removed []string, err error) {
		changes = append(changes, fmt.Sprint(added, removed, err))
	})
	require.NoError(t, err)
	second := add(t, path, "second", time.Time{}, Read)
	_, err = keys.Check(second, Read)
	require.NoError(t, err, "a new key is valid without a restart")
	revoke(t, path, ID(first))
	_, err = keys.Check(first, Read)
	require.ErrorIs(t, err, ErrInvalid, "a revoked key is not valid any more")
	assert.Equal(t, []string{fmt.Sprint([]string{ID(second)}, []string{}, error(nil)), fmt.Sprint([]string{}, []string{ID(first)}, error(nil))}, changes)

	// An invalid file makes all keys invalid, and is reported once.
	changes = nil
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	for range 3 {
		_, err = keys.Check(second, Read)
		require.ErrorIs(t, err, ErrInvalid)
	}
	require.Len(t, changes, 1)
	assert.Contains(t, changes[0], "not a key file: unexpected EOF")
	require.NoError(t, os.Remove(path))
	third := add(t, path, "third", time.Time{}, Read)
	_, err = keys.Check(third, Read)
	require.NoError(t, err)
	if runtime.GOOS != "windows" {
		require.NoError(t, os.Chmod(path, 0o644))
		_, err = keys.Check(third, Read)
		require.ErrorIs(t, err, ErrInvalid, "others may have read or replaced the file")
	}
}

func TestLoad_Rejected(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	key := `{"id":"abcdefgh","name":"n","scopes":["read"],"created":"2026-11-25T12:00:00Z","sha256":"` + hash + `"}`
	for _, tt := range []struct{ what, text, want string }{
		{"not JSON", "hello", "not a key file: invalid character 'h' looking for beginning of value"},
		{"other version", `{"version":2,"keys":[]}`, "the key file has version 2: this program reads version 1"},
		{"unknown field", `{"version":1,"keys":[{"id":"abcdefgh","only_from":"10.0.0.0/8"}]}`, `not a key file: json: unknown field "only_from"`},
		{"same id twice", `{"version":1,"keys":[` + key + `,` + key + `]}`, "key 2: the id abcdefgh occurs twice"},
		{"short hash", `{"version":1,"keys":[` + strings.Replace(key, hash, hash[2:], 1) + `]}`, "key 1: sha256 is not a SHA-256 in hexadecimal digits"},
		{"more text", `{"version":1,"keys":[` + key + `]}{}`, "not a key file: it has text after its end"},
		{"too large", strings.Repeat(" ", maxFile+1), "the key file is larger than 1048576 bytes"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keys.json")
			require.NoError(t, os.WriteFile(path, []byte(tt.text), 0o600))
			_, err := Load(path)
			require.EqualError(t, err, path+": "+tt.want)
		})
	}
}

func TestLoad_Permissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such permissions")
	}
	path := filepath.Join(t.TempDir(), "state", "keys.json")
	_, err := Load(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "create the first key with gpuflight key create")
	add(t, path, "n", time.Time{}, Read)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	info, err = os.Stat(filepath.Dir(path))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
	for _, mode := range []fs.FileMode{0o604, 0o620, 0o644, 0o660} {
		require.NoError(t, os.Chmod(path, mode))
		_, err = Load(path)
		require.EqualError(t, err, fmt.Sprintf("%s has the permissions %04o: only its owner may write and its group may read (chmod 600)", path, mode))
	}
	for _, mode := range []fs.FileMode{0o400, 0o440, 0o640} {
		require.NoError(t, os.Chmod(path, mode))
		_, err = Load(path)
		require.NoError(t, err, "%04o", mode)
	}
	_, err = Load(filepath.Dir(path))
	require.EqualError(t, err, filepath.Dir(path)+" is not a regular file")
}

func TestEdit_Concurrent(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keys.json")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { add(t, path, fmt.Sprint(i), time.Time{}, Read) })
	}
	wg.Wait()
	keys, err := Load(path)
	require.NoError(t, err)
	assert.Len(t, keys, 20)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, files, 2, "the keys and the lock: no temporary file is left")
}

func TestEdit_Failure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	add(t, path, "n", time.Time{}, Read)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	failed := errors.New("no")
	require.ErrorIs(t, Edit(path, func([]Key) ([]Key, error) { return nil, failed }), failed)
	require.ErrorContains(t, Edit(path, func([]Key) ([]Key, error) { return []Key{{}}, nil }), "key 1: ")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

func TestEdit_Link(t *testing.T) {
	dir := t.TempDir()
	add(t, filepath.Join(dir, "real.json"), "n", time.Time{}, Read)
	link := filepath.Join(dir, "link.json")
	if err := os.Symlink("real.json", link); err != nil {
		t.Skip(err)
	}
	add(t, link, "m", time.Time{}, Read)
	keys, err := Load(filepath.Join(dir, "real.json"))
	require.NoError(t, err)
	assert.Len(t, keys, 2)
}

// FuzzParse checks that a file is rejected, or that its keys survive a round trip.
func FuzzParse(f *testing.F) {
	k, text, err := New("n", "p", []Scope{Read, Admin}, day, day.Add(time.Hour))
	require.NoError(f, err)
	b, err := json.Marshal(content{Version: fileVersion, Keys: []Key{k}})
	require.NoError(f, err)
	f.Add(b, text)
	f.Add([]byte(`{"version":1,"keys":null}`), "gpfl_")
	f.Fuzz(func(t *testing.T, b []byte, text string) {
		if id := ID(text); id != "" && (len(id) != idLength || !strings.Contains(text, id)) {
			t.Errorf("ID(%q) = %q", text, id)
		}
		keys, err := parse(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(content{Version: fileVersion, Keys: keys})
		if err != nil {
			return // a year above 9999 has no JSON form
		}
		same, err := parse(again)
		require.NoError(t, err)
		require.Len(t, same, len(keys))
		for i := range keys {
			if keys[i].is(text) != same[i].is(text) || keys[i].Name != same[i].Name || keys[i].Project != same[i].Project {
				t.Errorf("%+v became %+v", keys[i], same[i])
			}
		}
	})
}
