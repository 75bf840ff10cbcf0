import type { SignInText } from '../en/signIn'

const zh: SignInText = {
  title: '登录',
  about: '在你自己的服务器上与 AI 智能体协作。',
  username: '用户名',
  password: '密码',
  signIn: '登录',
  register: '创建账户',
  registerTitle: '创建账户',
  haveAccount: '我已有账户',
  defaultTitle: '此服务器仍在使用默认密码',
  defaultText: (name, password) => `用户名 ${name}，密码 ${password}。在你设置新密码之前，它只能在本机使用。`,
  useDefault: '用它登录',
  choosePassword: '设置你自己的密码',
  chooseAbout: '当前密码由他人设置，或者是默认密码。请设置一个只有你知道的密码。',
  currentPassword: '当前密码',
  newPassword: '新密码',
  repeatPassword: '再次输入新密码',
  passwordHint: '至少 8 个字符。',
  differ: '两次输入的密码不一致。',
  setPassword: '设置密码',
  notNow: '以后再说',
  passwordSet: '密码已修改，你的其他登录均已结束。',
  banner: '此账户仍在使用默认密码，因此只能在本机使用。',
  ended: '登录已结束。重新登录后会回到原来的页面，已输入的内容不会丢失。',
}

export default zh
