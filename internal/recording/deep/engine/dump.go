// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuflight/gpuflight/cupti"
)

// dump keeps what CUPTI returned, where settings ask for it: a text that the fake CUPTI of our
// tests can play back, and the images that it is about.
func (w *worker) dump(window uint64, r *cupti.DeepResult) {
	if w.settings.Dump == "" {
		return
	}
	path := filepath.Join(w.settings.Dump, fmt.Sprintf("%d-%d-%s.txt", os.Getpid(), window, r.Engine))
	if err := writeResult(path, r); err != nil {
		w.log.Warn("gpuflight: what a deep window yielded cannot be kept", "error", err)
		return
	}
	for i := range r.Rows {
		crc := r.Rows[i].CRC
		if _, dumped := w.dumped[crc]; dumped || len(w.dumped) >= maxDumped {
			continue
		}
		w.dumped[crc] = struct{}{}
		image := w.from.CubinImage(crc)
		if image == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(w.settings.Dump, fmt.Sprintf("%d.cubin", crc)), image, 0o600); err != nil {
			w.log.Warn("gpuflight: an image of a deep window cannot be kept", "error", err)
		}
	}
}

func writeResult(path string, r *cupti.DeepResult) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	b := bufio.NewWriter(f)
	line := strings.NewReplacer("\n", " ", "\r", " ")
	fmt.Fprintf(b, "gpuflight-deep 1 %s\n", r.Engine)
	for i, name := range r.Names {
		fmt.Fprintf(b, "name %d %s\n", i, line.Replace(name))
	}
	for i, name := range r.Functions {
		fmt.Fprintf(b, "function %d %s\n", i, line.Replace(name))
	}
	for i := range r.Rows {
		x := &r.Rows[i]
		fmt.Fprintf(b, "row %d %d %d %d %d %d %d\n", x.Device, x.CRC, x.PC, x.Function, x.What, x.Correlation, x.Value)
	}
	fmt.Fprintf(b, "totals %d %d %d\n", r.Totals.Samples, r.Totals.DroppedSamples, r.Totals.NonUserSamples)
	return b.Flush()
}
