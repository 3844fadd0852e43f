// SPDX-License-Identifier: Apache-2.0

//go:build linux

package front

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/ClickHouse/ch-go/compress"
	chproto "github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2/lib/proto"
)

// atRevision converts blocks of the Native format to a later protocol revision. The engine writes
// revision 0, which lacks the block information and the serialization byte of each column.
func atRevision(native []byte, revision uint64) ([]byte, error) {
	in := chproto.NewReader(bytes.NewReader(native))
	var out chproto.Buffer
	for {
		block := proto.NewBlock()
		if err := block.Decode(in, 0); err != nil {
			if errors.Is(err, io.EOF) && len(block.Columns) == 0 {
				return out.Buf, nil
			}
			return nil, fmt.Errorf("block of the engine: %w", err)
		}
		if err := block.Encode(&out, revision); err != nil {
			return nil, fmt.Errorf("block for revision %d: %w", revision, err)
		}
	}
}

// compressed encodes bytes in ClickHouse's compressed frames with LZ4.
func compressed(plain []byte) ([]byte, error) {
	const frame = 1 << 20 // the maximum of a server
	w := compress.NewWriter(compress.LevelZero, compress.LZ4)
	var out []byte
	for len(plain) > 0 {
		n := min(frame, len(plain))
		if err := w.Compress(plain[:n]); err != nil {
			return nil, err
		}
		out, plain = append(out, w.Data...), plain[n:]
	}
	return out, nil
}

// frames decodes ClickHouse's compressed frames of all methods.
type frames struct {
	packed *bytes.Reader
	plain  *compress.Reader
}

func decompressed(packed []byte) io.Reader {
	in := bytes.NewReader(packed)
	return &frames{in, compress.NewReader(in)}
}

// Read distinguishes the end of the last frame from a truncated frame; the library returns the same
// error for both.
func (f *frames) Read(p []byte) (int, error) {
	left := f.packed.Len()
	n, err := f.plain.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.EOF
		if left > 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}
