// SPDX-License-Identifier: Apache-2.0

package store

// Backend is an open store that others use and that its owner closes.
type Backend interface {
	Writer
	Reader
	Admin
}

// Storage holds named stores. The extension gpu_storage implements it, and other components find it
// among the extensions of the Collector.
type Storage interface {
	// Backend returns the store with this name. The name "" is that of the only store, and an error
	// if there are several. The store is open from the start of the extension to its shutdown. After
	// that its calls return errors.
	Backend(name string) (Backend, error)
}
