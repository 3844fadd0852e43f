// SPDX-License-Identifier: Apache-2.0
declare module "*.module.css" {
  const classes: Record<string, string>;
  export default classes;
}
