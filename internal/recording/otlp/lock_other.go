// SPDX-License-Identifier: Apache-2.0

//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd)

package otlp

import (
	"errors"
	"os"
)

func tryLock(*os.File) error { return errors.ErrUnsupported }
func unlock(*os.File)        {}
