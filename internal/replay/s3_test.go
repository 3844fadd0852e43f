// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestS3ObjectsAreReadOnWhereTheConnectionBroke(t *testing.T) {
	s := startS3(t)
	var data []byte
	for i := range 50 {
		data = append(data, jsonLine(t, 10*i, 10)...)
	}
	s.put("b/traces_1.json", data)
	s.cutAfter = len(data)/7 + 1
	c := newCollector()
	counts := run(t, Options{Sources: []Source{source(t, "s3://b")}, Sender: c})
	assert.Equal(t, 500, counts.Spans)
	assert.Len(t, c.spans, 500)
	assert.Equal(t, int64(len(data)), counts.BytesRead)
	assert.Equal(t, 7, s.gets)
	assert.Empty(t, counts.Rejected)
}

func TestS3ObjectsThatCannotBeReadAreNamedAndTriedAgain(t *testing.T) {
	s := startS3(t)
	for i := range 4 {
		s.put(fmt.Sprintf("b/traces_%d.json", i), jsonLine(t, 10*i, 10))
	}
	s.denied["b/traces_1.json"] = true
	state := filepath.Join(t.TempDir(), "state")
	again := func() (Counts, []Problem) {
		j, err := OpenJournal(state)
		require.NoError(t, err)
		defer j.Close()
		var problems []Problem
		counts := run(t, Options{
			Sources: []Source{source(t, "s3://b/traces")}, Sender: newCollector(), Journal: j,
			Problem: func(p Problem) { problems = append(problems, p) },
		})
		return counts, problems
	}
	counts, problems := again()
	assert.Equal(t, 30, counts.Spans)
	assert.Equal(t, []Problem{{Object: "s3://b/traces_1.json", Reason: ReasonUnreadable, Detail: "AccessDenied: this is AccessDenied"}}, problems)
	assert.Equal(t, 1, counts.Lost())
	s.denied = nil
	counts, problems = again()
	assert.Empty(t, problems)
	assert.Equal(t, 10, counts.Spans)
	assert.Equal(t, map[string]int{SkippedDone: 3}, counts.Skipped)
}

func TestS3ObjectThatIsReplacedWhileItIsRead(t *testing.T) {
	s := startS3(t)
	data := bytes.Repeat(jsonLine(t, 0, 10), 200)
	s.put("b/traces_1.json", data)
	s.cutAfter = len(data) / 2
	replaced := false
	counts := run(t, Options{
		Sources: []Source{source(t, "s3://b")}, Sender: newCollector(), BatchItems: 10,
		Progress: func(Counts) {
			if !replaced {
				replaced = true
				s.put("b/traces_1.json", data[:len(data)/2])
			}
		},
	})
	assert.Equal(t, map[string]int{ReasonUnreadable: 1}, counts.Rejected)
	assert.Zero(t, counts.Objects)
}

func TestS3BucketThatIsNotThere(t *testing.T) {
	startS3(t)
	_, err := Run(t.Context(), Options{Sources: []Source{source(t, "s3://nowhere/x")}})
	require.EqualError(t, err, "listing s3://nowhere/x: NoSuchBucket: this is NoSuchBucket")
	_, err = NewSource(t.Context(), "s3:///x")
	require.ErrorContains(t, err, "no bucket")
	_, err = NewSource(t.Context(), "gs://x/y")
	require.ErrorContains(t, err, "only s3:// and files")
}
