// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package recorder

import "time"

// threadTime is unsupported on this system.
func threadTime() func() time.Duration { return func() time.Duration { return 0 } }
