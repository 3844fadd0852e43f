// SPDX-License-Identifier: Apache-2.0

package fileset

import (
	"strings"

	"github.com/gpuflight/gpuflight/internal/gpuflog"
)

// controlKind distinguishes the recorder's hidden files.
type controlKind uint8

const (
	controlNone    controlKind = iota
	controlLock                // .gpufl-session.lock
	controlSidecar             // .gpufl-window.<ch>.<N>.json
	controlLoss                // .gpufl-transport-loss.[agent-]<ch>.<N>.json
	controlOther               // any other .gpufl-*: proof of a C3 session folder and nothing more
)

const lockName = ".gpufl-session.lock"

func parseControl(name string) (kind controlKind, ch gpuflog.Channel, n uint64) {
	if name == lockName {
		return controlLock, 0, 0
	}
	if !strings.HasPrefix(name, ".gpufl-") {
		return controlNone, 0, 0
	}
	kind = controlSidecar
	rest, ok := strings.CutPrefix(name, ".gpufl-window.")
	if !ok {
		kind = controlLoss
		if rest, ok = strings.CutPrefix(name, ".gpufl-transport-loss."); !ok {
			return controlOther, 0, 0
		}
		rest = strings.TrimPrefix(rest, "agent-")
	}
	if rest, ok = strings.CutSuffix(rest, ".json"); !ok {
		return controlOther, 0, 0
	}
	chName, num, _ := strings.Cut(rest, ".")
	ch, okCh := gpuflog.ChannelNamed(chName)
	index, okN := gpuflog.ParseFileIndex(num)
	if !okCh || !okN || index == 0 {
		return controlOther, 0, 0
	}
	return kind, ch, uint64(index)
}
