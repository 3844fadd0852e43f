// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package deep

import "os"

// watchSignal does nothing: this system does not have the signals.
func watchSignal(string) (<-chan os.Signal, func()) { return nil, func() {} }
