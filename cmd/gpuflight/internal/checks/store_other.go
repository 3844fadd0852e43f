// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package checks

import "errors"

func freeSpace(string) (uint64, bool, error) { return 0, true, errors.ErrUnsupported }

func (System) owner(string) string { return "" }
